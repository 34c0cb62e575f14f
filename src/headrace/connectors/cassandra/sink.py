"""A table in Cassandra: each row under its record's own key, or under a key whose newest value stays."""

from __future__ import annotations

import hashlib
import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from headrace.connectors.cassandra import client
from headrace.connectors.cassandra.table import Column, Layout, Table
from headrace.connectors.cassandra.types import CqlType, parsed
from headrace.connectors.cassandra.writer import CassandraTarget, CassandraWriter
from headrace.connectors.shared.keyed_sink import KeyedSink, RowKey
from headrace.connectors.shared.topic_generations import refuse_unversioned, topic_generation
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from headrace.connectors.shared.keyed_sink import Writer
    from headrace.types import Batch

Consistency = Literal["LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL", "LOCAL_ONE", "ONE", "TWO", "THREE"]
_KEY = ("partition", "offset")
_FIRST_ERA = 1
_COLUMNS = """SELECT column_name, kind, position, type FROM system_schema.columns
    WHERE keyspace_name = %s AND table_name = %s"""
_TYPES = "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = %s"
_KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"
_TOPICS = "CREATE TABLE IF NOT EXISTS {topics} (target text PRIMARY KEY, topics text)"
_KNOWN = "SELECT topics FROM {topics} WHERE target = ?"
_REGISTER = "UPDATE {topics} SET topics = ? WHERE target = ? IF topics = ?"
_ROLES = ("partition_key", "clustering", "static", "regular")


class Cassandra(KeyedSink):
    """Rows into `table` ("keyspace.table"), written by the executors; the same row twice is there once.

    `key` is the table's primary key: by default (partition, offset) of the record; columns of the rows otherwise, the
    first of which chooses the partition, or several as in `key=(("user", "day"), "page")`. A value under such a key
    has the source offset as its timestamp, so that an older one never takes the place of a newer one.

    `ttl` is seconds, or the column that has them. `create` makes the table. `options` are those of the driver's
    Cluster, or a function that gives them, where they cannot be pickled (ssl_context).
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
        self._layout = Layout.of(_KEY if key is None else key)
        super().__init__(RowKey.of(self._layout.columns, deleted, default=_KEY))
        home, _, name = table.rpartition(".") if isinstance(table, str) else ("", "", "")
        if not home:
            raise ConfigError(f"table={table!r} names no keyspace", hint=f'table="app.{table}"')
        if isinstance(ttl, bool) or (isinstance(ttl, int) and ttl <= 0) or ttl == "":
            raise ConfigError(f"ttl={ttl!r} is no time to live", hint='seconds: ttl=86400; or a column: ttl="seconds"')
        if ttl in self._layout.columns:
            raise ConfigError(f"ttl={ttl!r} is in the key", hint="name a column that is not stored")
        if consistency not in get_args(Consistency):
            raise ConfigError(
                f"consistency={consistency!r} is no level to write at",
                hint=f"one of: {', '.join(get_args(Consistency))}",
            )
        self._keyspace, self._name = client.name(home), f"{client.name(home)}.{client.name(name)}"
        self._place = _place(client.endpoints(hosts), username, password, options or {})
        self._consistency: str = consistency
        self._create = create
        self._ttl = ttl
        self._cluster: Any = None
        self._session: Any = None
        self._prepared: tuple[StructType, Table, dict[str, CqlType]] | None = None
        self._register: tuple[Any, Any] | None = None

    @property
    def identity(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self._place.hosts)
        return f"sinks.Cassandra({hosts!r}, {'.'.join(client.plain(part) for part in self._parts)!r})"

    def secrets(self) -> frozenset[str]:
        return frozenset({self._place.password} if self._place.password else ())

    def open(self, pipeline: str) -> Self:
        place = self._place
        with client.translate_error(self):
            self._cluster, self._session = client.connect(place.hosts, place.username, place.password, place.settings())
        return self

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()
        self._cluster = self._session = self._prepared = self._register = None

    def prepare(self, schema: StructType) -> None:
        wanted = self._wanted(schema)
        with self._opened() as session:
            there = self._look(session)
            if not there:
                self._check_keyspace(session)
            if not there and self._create:
                session.execute(wanted.create())
                there = self._look(session)
        self._prepared = (schema, wanted, wanted.check(there, repr(self)))

    def check_reachable(self) -> None:
        with self:
            self.open("")  # which connects, and creates nothing

    def check_target(self, schema: StructType) -> None:
        wanted = self._wanted(schema)
        with self.open(""), self._opened() as session:
            there = self._look(session)
            if not there:
                self._check_keyspace(session)
            if there or not self._create:
                wanted.check(there, repr(self))

    def _wanted(self, schema: StructType) -> Table:
        column = self._ttl if isinstance(self._ttl, str) else None
        types, by_origin = self._identity.types(schema), self._identity.by_origin(schema.names)
        return Table(self._name, self._layout, types, column, by_origin=by_origin)

    def _writer(self, batch: Batch, schema: StructType) -> Writer:
        if self._prepared is None or self._prepared[0] != schema:
            self.prepare(schema)
        assert self._prepared is not None
        _, table, kinds = self._prepared
        era = None
        if not table.by_origin:
            with self._opened() as session:
                if METADATA in schema.names:
                    era = topic_generation(
                        batch, repr(self), lambda: self._known(session), self._swap, first=_FIRST_ERA
                    )
                else:
                    refuse_unversioned(repr(self), self._known(session))
        return CassandraWriter(
            sink=repr(self),
            place=self._place,
            insert=table.insert,
            delete=table.delete,
            names=tuple(table.names),
            kinds=kinds,
            key=self._layout.columns,
            era=era,
            ttl=self._ttl,
            consistency=self._consistency,
        )

    @property
    def _parts(self) -> tuple[str, str]:
        return self._keyspace, self._name.removeprefix(f"{self._keyspace}.")

    def _look(self, session: Any) -> list[Column]:
        home, name = (client.plain(part) for part in self._parts)
        types = {row.type_name: (row.field_names, row.field_types) for row in session.execute(_TYPES, [home])}
        found = sorted(session.execute(_COLUMNS, [home, name]), key=lambda row: (_ROLES.index(row.kind), row.position))
        return [Column(row.column_name, row.kind, row.type, parsed(row.type, types)) for row in found]

    def _check_keyspace(self, session: Any) -> None:
        home = client.plain(self._keyspace)
        if not list(session.execute(_KEYSPACE, [home])):
            raise ConfigError(
                f"{self!r}: there is no keyspace {home}",
                hint=f"CREATE KEYSPACE {self._keyspace} WITH replication = "
                "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}",
            )

    def _known(self, session: Any) -> str | None:
        if self._register is None:
            self._register = self._registered(session)
        row = session.execute(self._register[0], [self._name]).one()
        return row.topics if row else None

    def _swap(self, old: str | None, new: str) -> bool:
        assert self._register is not None
        answer = self._session.execute(self._register[1], [new, self._name, old]).one()
        return bool(answer[0])

    def _registered(self, session: Any) -> tuple[Any, Any]:
        cassandra = require("cassandra", extra="cassandra")
        topics = f"{self._keyspace}.headrace_topics"
        try:
            known, swap = (session.prepare(text.format(topics=topics)) for text in (_KNOWN, _REGISTER))
        except cassandra.InvalidRequest:  # asked only when it is not there, for it takes the right to create
            session.execute(_TOPICS.format(topics=topics))
            known, swap = (session.prepare(text.format(topics=topics)) for text in (_KNOWN, _REGISTER))
        known.consistency_level = cassandra.ConsistencyLevel.SERIAL
        swap.consistency_level = cassandra.ConsistencyLevel.QUORUM
        swap.serial_consistency_level = cassandra.ConsistencyLevel.SERIAL
        return known, swap

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        if self._session is None:
            raise ConfigError(f"{self!r} is used before open()")
        with client.translate_error(self):
            yield self._session


def _place(hosts: list[tuple[str, int]], username: str | None, password: str | None, options: Any) -> CassandraTarget:
    if not callable(options):
        options = dict(options)
        try:
            pickle.dumps(options)
        except Exception as error:  # whatever an object's own __reduce__ raises
            raise ConfigError(
                f"options= cannot be sent to the executors: {error}",
                hint="give a function that makes them there: options=lambda: {'ssl_context': …}",
            ) from error
    mark = hashlib.sha256(repr((hosts, username, password, options)).encode()).hexdigest()
    return CassandraTarget(tuple(hosts), username, password, options, mark)
