"""Offsets in Cassandra: one partition per pipeline, moved by one conditional batch."""

from __future__ import annotations

import copy
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.cassandra import client
from headrace.core.offset_store import OffsetStore
from headrace.core.state import AuditEntry, State
from headrace.errors import ConfigError
from headrace.support.optional_imports import require
from headrace.types import Progress, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.core.offset_store import Heartbeats

# What belongs to no partition is in the row with the empty topic, not in static columns: those come back with
# every row, and a pending batch of 1,000 partitions is 40 KB.
_TABLE = """CREATE TABLE IF NOT EXISTS {table} (
    pipeline text, topic text, "partition" int, next_offset bigint, state text,
    version uuid static, history list<text> static,
    PRIMARY KEY (pipeline, topic, "partition"))"""
_READ = 'SELECT topic, "partition", next_offset, state, version FROM {table} WHERE pipeline = ?'
_HISTORY = "SELECT DISTINCT pipeline, history FROM {table} WHERE pipeline = ?"
_VERSION = "UPDATE {table} SET version = ?, history = history + ? WHERE pipeline = ? IF version = ?"
_STATE = """UPDATE {table} SET state = ? WHERE pipeline = ? AND topic = '' AND "partition" = 0"""
_OFFSET = 'UPDATE {table} SET next_offset = ? WHERE pipeline = ? AND topic = ? AND "partition" = ?'
_KEYSPACE = "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"


class Cassandra(OffsetStore):
    """Any number of pipelines in one table, which is created when it is not there.

    `hosts` is "host:port,host" or a list. `create=True` also creates the keyspace, with one copy of everything: for
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
        self._hosts = client.endpoints(hosts)
        self._keyspace = client.name(keyspace)
        self._table = f"{self._keyspace}.{client.name(table)}"
        self._create = create
        self._username = username
        self._password = password
        self._options = dict(options or {})
        self._rows: client.OffsetsFromTable | None = None
        self._pipeline = ""
        self._cluster: Any = None
        self._session: Any = None
        self._prepared: dict[str, Any] = {}

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
        **more: Any,
    ) -> Self:
        """A store that starts from the rows of `table` ("keyspace.table") while nothing is stored for the pipeline:
        after the last offset of each partition. Later it is a store as any other, in `keyspace` or beside the rows.

        That is right for rows that were written in order within a partition, or by a batch that was finished.
        """
        home, _, rows = table.rpartition(".")
        if not home:
            raise ConfigError(f"table={table!r} names no keyspace", hint=f'table="app.{table}"')
        store = cls(hosts, keyspace=keyspace or home, **more)
        store._rows = client.OffsetsFromTable(
            client.name(home), client.name(rows), topic, client.name(partition_column), client.name(offset_column)
        )
        return store

    @property
    def identity(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self._hosts)
        return f"stores.Cassandra({hosts!r}, keyspace={client.plain(self._keyspace)!r})"

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        with client.translate_error(self):
            self._cluster, self._session = self._connect()
            self._find_keyspace()
            try:
                self._prepare()
            except require("cassandra", extra="cassandra").InvalidRequest:
                # Asked only when it is not there, for it takes the right to create. Not by the system's tables: they
                # show a table that another run is creating before it can be used.
                self._session.execute(_TABLE.format(table=self._table))
                self._prepare()
        return self

    def open_for_reading(self, pipeline: str) -> str | None:
        self._pipeline = pipeline
        with client.translate_error(self):
            self._cluster, self._session = self._connect()
            if not self._has_keyspace():
                missing = f"there is no keyspace {client.plain(self._keyspace)}"
            else:
                try:
                    self._prepare()
                    return None
                except require("cassandra", extra="cassandra").InvalidRequest:
                    missing = f"there is no table {self._table}"
        self.close()
        return f"{self!r}: {missing}"

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()
            self._cluster = self._session = None

    def read(self) -> tuple[State, Any]:
        with self._opened() as session:
            rows = list(session.execute(self._prepared[_READ], [self._pipeline]))
            if not rows:
                return self._beginning(session), None
        (stored,) = (row.state for row in rows if row.topic == "")
        offsets = {TopicPartition(row.topic, row.partition): row.next_offset for row in rows if row.topic}
        state = State.from_json(stored)
        return replace(state, progress=replace(state.progress, offsets=offsets)), rows[0].version

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        query = require("cassandra.query", extra="cassandra")
        levels = require("cassandra", extra="cassandra").ConsistencyLevel
        mine = uuid.uuid4()
        # Of a pipeline that is not stored yet, `old` may have been read off the rows of another table.
        before = old.progress.offsets if version is not None else {}
        rest = replace(new, progress=replace(new.progress, offsets={}))
        with self._opened() as session:
            batch = query.BatchStatement(query.BatchType.UNLOGGED, consistency_level=levels.QUORUM)
            batch.serial_consistency_level = levels.SERIAL
            batch.add(self._prepared[_VERSION], [mine, [change.to_json()] if change else [], self._pipeline, version])
            batch.add(self._prepared[_STATE], [rest.to_json(), self._pipeline])
            for at, offset in new.progress.offsets.items():
                if before.get(at) != offset:
                    batch.add(self._prepared[_OFFSET], [offset, self._pipeline, at.topic, at.partition])
            answer = session.execute(batch).one()
        # Refused because it is there already: the coordinator tried twice.
        return bool(answer[0]) or getattr(answer, "version", None) == mine

    def heartbeat_handle(self) -> Heartbeats:
        other = copy.copy(self)
        other._cluster = other._session = None
        other._prepared = {}
        return other

    def history(self) -> Sequence[AuditEntry]:
        with self._opened() as session:
            found = session.execute(self._prepared[_HISTORY], [self._pipeline]).one()
        return [AuditEntry.from_json(text) for text in (found.history or [])] if found else []

    def durability_warnings(self, pipeline: str) -> list[str]:
        with client.translate_error(self):
            cluster, session = self._connect()
            try:
                asked = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
                found = session.execute(asked, [client.plain(self._keyspace)]).one()
            finally:
                cluster.shutdown()
        copies = sum(int(n) for key, n in found.replication.items() if key != "class") if found else 0
        alone = f"{self!r} keeps one copy: offsets go with its disk, and the last 10 seconds may go with its power"
        return [f"{alone} (commitlog_sync)"] if copies == 1 else []

    def _connect(self) -> tuple[Any, Any]:
        return client.connect(self._hosts, self._username, self._password, self._options)

    def _beginning(self, session: Any) -> State:
        if self._rows is None:
            return State()
        return State(Progress(self._rows.reached(session)))

    def _find_keyspace(self) -> None:
        if self._create:
            self._session.execute(_KEYSPACE.format(self._keyspace))
        if not self._has_keyspace():
            name = client.plain(self._keyspace)
            raise ConfigError(
                f"{self!r}: there is no keyspace {name}",
                hint=f"CREATE KEYSPACE {name} WITH replication = …; for a test: create=True",
            )

    def _has_keyspace(self) -> bool:
        asked = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"
        return bool(list(self._session.execute(asked, [client.plain(self._keyspace)])))

    def _prepare(self) -> None:
        levels = require("cassandra", extra="cassandra").ConsistencyLevel
        for statement in (_READ, _HISTORY, _VERSION, _STATE, _OFFSET):
            self._prepared[statement] = self._session.prepare(statement.format(table=self._table))
        for statement in (_READ, _HISTORY):
            self._prepared[statement].consistency_level = levels.SERIAL
        self._prepared[_READ].fetch_size = None  # pages would be read one after the other, with changes in between

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        if self._session is None:
            raise ConfigError(f"{self!r} is used before open()")
        with client.translate_error(self):
            yield self._session
