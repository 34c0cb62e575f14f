"""The Cassandra sink: rows under the key of their record, or upserted by a business key."""

from __future__ import annotations

import hashlib
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from headrace.connectors.cassandra import client
from headrace.connectors.cassandra.table import CqlColumn, CqlTable, PrimaryKey
from headrace.connectors.cassandra.types import CqlType, parse_type
from headrace.connectors.cassandra.writer import CassandraConnection, CassandraWriter
from headrace.connectors.shared.keyed_sink import KeyedSink, RowKey
from headrace.connectors.shared.topic_generations import refuse_unversioned, topic_generation
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.support.optional_imports import require
from headrace.support.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql.types import StructType

    from headrace.connectors.shared.keyed_sink import Writer
    from headrace.types import Batch

Consistency = Literal["LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL", "LOCAL_ONE", "ONE", "TWO", "THREE"]
_KEY = ("partition", "offset")
_FIRST_GENERATION = 1
_COLUMNS = """SELECT column_name, kind, position, type FROM system_schema.columns
    WHERE keyspace_name = %s AND table_name = %s"""
_TYPES = "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = %s"
_CREATE_TOPICS = "CREATE TABLE IF NOT EXISTS {topics} (target text PRIMARY KEY, topics text)"
_READ_TOPICS = "SELECT topics FROM {topics} WHERE target = ?"
_SWAP_TOPICS = "UPDATE {topics} SET topics = ? WHERE target = ? IF topics = ?"
_ROLES = ("partition_key", "clustering", "static", "regular")


class Cassandra(client.SessionOwner, KeyedSink):
    """Writes rows to `table` ("keyspace.table") from the executors. A repeated write overwrites the same row.

    `key` is the table's primary key: by default (partition, offset) of the record, otherwise columns of the rows. The
    first is the partition key, which may have several columns: `key=(("user", "day"), "page")`. Values under such a key
    have the source offset as their timestamp, so that an older value never replaces a newer one.

    `ttl` is a number of seconds, or a column with the seconds. `create=True` creates the table. `options` are those of
    the driver's Cluster, or a function that returns them if they cannot be pickled (ssl_context).
    """

    driver = ("cassandra", "cassandra")

    by_offset = True

    def __init__(
        self,
        hosts: str | Sequence[str],
        table: str,
        *,
        key: str | Sequence[str | Sequence[str]] | None = None,
        deleted: str | None = None,
        create: bool = False,
        ttl: str | int | None = None,
        consistency: Consistency = "LOCAL_QUORUM",
        username: str | None = None,
        password: str | None = None,
        options: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._primary_key = PrimaryKey.of(_KEY if key is None else key)
        super().__init__(RowKey.of(self._primary_key.columns, deleted, default=_KEY))
        names = client.split_table(table)
        if isinstance(ttl, bool) or (isinstance(ttl, int) and ttl <= 0) or ttl == "":
            raise ConfigError(
                f"expected ttl= to be seconds above 0 or a column, got {ttl!r}", hint='ttl=86400, or ttl="seconds"'
            )
        if ttl in self._primary_key.columns:
            raise ConfigError(f"expected ttl= to be a column outside the key, got {ttl!r}", hint='ttl="seconds"')
        check_choice("consistency", consistency, get_args(Consistency), hint='consistency="LOCAL_QUORUM"')
        self._keyspace, self._table = map(client.quote_identifier, names)
        self._connection = _connection(client.parse_hosts(hosts), username, password, options or {})
        self._consistency: str = consistency
        self._create = create
        self._ttl = ttl
        self._prepared_table: CqlTable | None = None
        self._column_types: dict[str, CqlType] = {}
        self._topic_statements: list[Any] | None = None

    @property
    def identity(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self._connection.hosts)
        table = ".".join(map(client.unquote_identifier, (self._keyspace, self._table)))
        return f"sinks.Cassandra({hosts!r}, {table!r})"

    def secrets(self) -> frozenset[str]:
        return frozenset({self._connection.password} if self._connection.password else ())

    def open(self, pipeline: str) -> Self:
        with client.translate_errors(self):
            self._cluster, self._session = self._connection.connect()
        return super().open(pipeline)

    def close(self) -> None:
        super().close()
        self._prepared_table = self._topic_statements = None

    def prepare(self, schema: StructType) -> None:
        expected = self._expected_table(schema)
        with self._use_session() as session:
            columns = self._read_columns(session)
            if not columns and self._create:
                session.execute(expected.create())
                columns = self._read_columns(session)
        self._column_types = expected.check(columns, repr(self))
        self._prepared_table = expected

    def check_target(self, schema: StructType) -> None:
        expected = self._expected_table(schema)
        with self.open(""), self._use_session() as session:
            columns = self._read_columns(session)
            if columns or not self._create:
                expected.check(columns, repr(self))

    def _expected_table(self, schema: StructType) -> CqlTable:
        ttl = self._ttl if isinstance(self._ttl, str) else None
        types, by_origin = self._identity.types(schema), self._identity.by_origin(schema.names)
        return CqlTable(f"{self._keyspace}.{self._table}", self._primary_key, types, ttl, by_origin=by_origin)

    def _writer(self, batch: Batch, schema: StructType) -> Writer:
        self.ensure_prepared(schema)
        table = self.require_open(self._prepared_table)
        generation = None
        if not table.by_origin:
            with self._use_session() as session:
                read, swap = partial(self._read_topics, session), partial(self._swap_topics, session)
                if METADATA in schema.names:
                    generation = topic_generation(batch, repr(self), read, swap, first=_FIRST_GENERATION)
                else:
                    refuse_unversioned(repr(self), read())
        return CassandraWriter(
            sink=repr(self),
            connection=self._connection,
            insert=table.insert,
            delete=table.delete,
            names=tuple(table.names),
            types=self._column_types,
            key=self._primary_key.columns,
            generation=generation,
            ttl=self._ttl,
            consistency=self._consistency,
        )

    def _read_columns(self, session: Any) -> list[CqlColumn]:
        """The columns of the table; none if it does not exist. ConfigError if its keyspace does not exist."""
        keyspace, table = map(client.unquote_identifier, (self._keyspace, self._table))
        user_types = {row.type_name: (row.field_names, row.field_types) for row in session.execute(_TYPES, [keyspace])}
        rows = sorted(
            session.execute(_COLUMNS, [keyspace, table]), key=lambda row: (_ROLES.index(row.kind), row.position)
        )
        if not rows and not client.keyspace_exists(session, self._keyspace):
            raise ConfigError(
                f"{self!r}: there is no keyspace {keyspace}",
                hint=f"CREATE KEYSPACE {self._keyspace} WITH replication = "
                "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}",
            )
        return [CqlColumn(row.column_name, row.kind, row.type, parse_type(row.type, user_types)) for row in rows]

    def _read_topics(self, session: Any) -> str | None:
        read, _ = self._prepare_topics(session)
        row = session.execute(read, [f"{self._keyspace}.{self._table}"]).one()
        return row.topics if row else None

    def _swap_topics(self, session: Any, old: str | None, new: str) -> bool:
        _, swap = self._prepare_topics(session)
        return bool(session.execute(swap, [new, f"{self._keyspace}.{self._table}", old]).one()[0])

    def _prepare_topics(self, session: Any) -> list[Any]:
        """The statements that read and swap the topics of the table's rows, which a second table stores."""
        if self._topic_statements is None:
            levels = require("cassandra", extra="cassandra").ConsistencyLevel
            create, *texts = (
                text.format(topics=f"{self._keyspace}.headrace_topics")
                for text in (_CREATE_TOPICS, _READ_TOPICS, _SWAP_TOPICS)
            )
            read, swap = client.prepare_statements(session, texts, create=create)
            read.consistency_level = levels.SERIAL
            swap.consistency_level = levels.QUORUM
            swap.serial_consistency_level = levels.SERIAL
            self._topic_statements = [read, swap]
        return self._topic_statements


def _connection(
    hosts: list[tuple[str, int]], username: str | None, password: str | None, options: Any
) -> CassandraConnection:
    if not callable(options):
        options = dict(options)
        try:
            pickle.dumps(options)
        except Exception as error:  # an object's __reduce__ may raise anything
            raise ConfigError(
                f"options= cannot be sent to the executors: {error}",
                hint="pass a function that returns them: options=lambda: {'ssl_context': …}",
            ) from error
    cache_key = hashlib.sha256(repr((hosts, username, password, options)).encode()).hexdigest()
    return CassandraConnection(tuple(hosts), username, password, options, cache_key)
