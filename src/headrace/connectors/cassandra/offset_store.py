"""Offsets in Cassandra: one partition per pipeline, moved by one conditional batch."""

from __future__ import annotations

import copy
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.cassandra import client
from headrace.core.offset_store import OffsetStore
from headrace.core.state import AuditEntry, State
from headrace.errors import ConfigError
from headrace.support.optional_imports import require
from headrace.types import Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.core.offset_store import Heartbeats

# The row with the empty topic has the state that belongs to no partition. Static columns would be returned with every
# row, and a pending batch of 1,000 partitions has 40 KB.
_TABLE = """CREATE TABLE IF NOT EXISTS {table} (
    pipeline text, topic text, "partition" int, next_offset bigint, state text,
    version uuid static, history list<text> static,
    PRIMARY KEY (pipeline, topic, "partition"))"""
_READ = 'SELECT topic, "partition", next_offset, state, version FROM {table} WHERE pipeline = ?'
_HISTORY = "SELECT DISTINCT pipeline, history FROM {table} WHERE pipeline = ?"
_VERSION = "UPDATE {table} SET version = ?, history = history + ? WHERE pipeline = ? IF version = ?"
_STATE = """UPDATE {table} SET state = ? WHERE pipeline = ? AND topic = '' AND "partition" = 0"""
_OFFSET = 'UPDATE {table} SET next_offset = ? WHERE pipeline = ? AND topic = ? AND "partition" = ?'
_STATEMENTS = (_READ, _HISTORY, _VERSION, _STATE, _OFFSET)
_REPLICATION = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
_KEYSPACE = "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"


class Cassandra(client.SessionOwner, OffsetStore):
    """Any number of pipelines in one table, which is created if it does not exist.

    `hosts` is "host:port,host" or a list. `create=True` also creates the keyspace, with replication factor 1: for
    tests. `options` are those of the driver's Cluster (ssl_context, execution_profiles, …).
    """

    driver = ("cassandra", "cassandra")

    def __init__(
        self,
        hosts: str | Sequence[str],
        *,
        keyspace: str,
        table: str = "headrace_offsets",
        create: bool = False,
        username: str | None = None,
        password: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._hosts = client.parse_hosts(hosts)
        self._keyspace = client.quote_identifier(keyspace)
        self._table = f"{self._keyspace}.{client.quote_identifier(table)}"
        self._create = create
        self._username = username
        self._password = password
        self._options = dict(options or {})
        self._initial_offsets: client.OffsetsFromTable | None = None
        self._pipeline = ""
        self._statements: dict[str, Any] = {}

    @classmethod
    def from_table(
        cls,
        hosts: str | Sequence[str],
        *,
        table: str,
        topic: str,
        partition_column: str = "partition",
        offset_column: str = "offset",
        keyspace: str | None = None,
        **options: Any,
    ) -> Self:
        """A store that starts after the last row of each partition of `table` ("keyspace.table") as long as nothing is
        stored for the pipeline. It keeps the offsets in `keyspace`, by default that of `table`.

        This is correct if the rows were written in order within each partition, or by batches that were finished.
        """
        table_keyspace, name = client.split_table(table)
        store = cls(hosts, keyspace=keyspace or table_keyspace, **options)
        names = (table_keyspace, name, partition_column, offset_column)
        store._initial_offsets = client.OffsetsFromTable(topic, *map(client.quote_identifier, names))
        return store

    @property
    def identity(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self._hosts)
        return f"stores.Cassandra({hosts!r}, keyspace={client.unquote_identifier(self._keyspace)!r})"

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        with client.translate_errors(self):
            self._cluster, self._session = self._connect()
            self._ensure_keyspace()
            self._prepare(create=_TABLE)
        return self

    def open_for_reading(self, pipeline: str) -> str | None:
        self._pipeline = pipeline
        with client.translate_errors(self):
            self._cluster, self._session = self._connect()
            if not client.keyspace_exists(self._session, self._keyspace):
                missing = f"there is no keyspace {client.unquote_identifier(self._keyspace)}"
            else:
                try:
                    self._prepare(create=None)
                    return None
                except require("cassandra", extra="cassandra").InvalidRequest:
                    missing = f"there is no table {self._table}"
        self.close()
        return f"{self!r}: {missing}"

    def read(self) -> tuple[State, Any]:
        with self._use_session() as session:
            rows = list(session.execute(self._statements[_READ], [self._pipeline]))
            if not rows:
                initial = self._initial_offsets
                return State(Progress(initial.read_offsets(session))) if initial else State(), None
        (stored,) = (row.state for row in rows if row.topic == "")
        offsets = {TopicPartition(row.topic, row.partition): row.next_offset for row in rows if row.topic}
        state = State.from_json(stored)
        return replace(state, progress=replace(state.progress, offsets=offsets)), rows[0].version

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        query = require("cassandra.query", extra="cassandra")
        levels = require("cassandra", extra="cassandra").ConsistencyLevel
        new_version = uuid.uuid4()
        # As long as nothing is stored for the pipeline, `old` may come from the rows of another table.
        before = old.progress.offsets if version is not None else {}
        without_offsets = replace(new, progress=replace(new.progress, offsets={}))
        audit = [change.to_json()] if change else []
        with self._use_session() as session:
            batch = query.BatchStatement(query.BatchType.UNLOGGED, consistency_level=levels.QUORUM)
            batch.serial_consistency_level = levels.SERIAL
            batch.add(self._statements[_VERSION], [new_version, audit, self._pipeline, version])
            batch.add(self._statements[_STATE], [without_offsets.to_json(), self._pipeline])
            for partition, offset in new.progress.offsets.items():
                if before.get(partition) != offset:
                    key = [self._pipeline, partition.topic, partition.partition]
                    batch.add(self._statements[_OFFSET], [offset, *key])
            answer = session.execute(batch).one()
        # The coordinator may try twice: then the second attempt is refused by the version that the first one stored.
        return bool(answer[0]) or getattr(answer, "version", None) == new_version

    def heartbeat_handle(self) -> Heartbeats:
        other = copy.copy(self)
        other._cluster = other._session = None
        other._statements = {}
        return other

    def history(self) -> Sequence[AuditEntry]:
        with self._use_session() as session:
            row = session.execute(self._statements[_HISTORY], [self._pipeline]).one()
        return [AuditEntry.from_json(text) for text in (row.history or [])] if row else []

    def durability_warnings(self, pipeline: str) -> list[str]:
        with client.translate_errors(self):
            cluster, session = self._connect()
            try:
                row = session.execute(_REPLICATION, [client.unquote_identifier(self._keyspace)]).one()
            finally:
                cluster.shutdown()
        copies = sum(int(n) for key, n in row.replication.items() if key != "class") if row else 0
        warning = (
            f"{self!r} keeps one copy: a lost disk loses the offsets, and a power failure may lose the last 10 seconds"
            " (commitlog_sync)"
        )
        return [warning] if copies == 1 else []

    def _connect(self) -> tuple[Any, Any]:
        return client.connect(self._hosts, self._username, self._password, self._options)

    def _ensure_keyspace(self) -> None:
        if self._create:
            self._session.execute(_KEYSPACE.format(self._keyspace))
        if not client.keyspace_exists(self._session, self._keyspace):
            name = client.unquote_identifier(self._keyspace)
            raise ConfigError(
                f"{self!r}: there is no keyspace {name}",
                hint=f"CREATE KEYSPACE {name} WITH replication = …; for a test: create=True",
            )

    def _prepare(self, *, create: str | None) -> None:
        levels = require("cassandra", extra="cassandra").ConsistencyLevel
        texts = [statement.format(table=self._table) for statement in _STATEMENTS]
        ddl = create and create.format(table=self._table)
        prepared = client.prepare_statements(self._session, texts, create=ddl)
        self._statements = dict(zip(_STATEMENTS, prepared, strict=True))
        for statement in (_READ, _HISTORY):
            self._statements[statement].consistency_level = levels.SERIAL
        self._statements[_READ].fetch_size = None  # pages are separate reads, and the rows may change between them
