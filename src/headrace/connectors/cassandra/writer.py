"""Runs on the executors for the Cassandra sink: sends many small, repeatable writes at a time."""

from __future__ import annotations

import re
import struct
import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headrace.connectors.cassandra import client as cql
from headrace.connectors.cassandra.types import check_key_value
from headrace.connectors.shared.topic_generations import NO_OFFSET, timestamp
from headrace.errors import RetriableError
from headrace.spark import tasks
from headrace.support.optional_imports import require
from headrace.support.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.connectors.cassandra.types import CqlType
    from headrace.connectors.shared.keyed_sink import Row

_CONCURRENT_WRITES = 64
_BUSY = RetryPolicy(attempts=5, first=0.1, factor=3.2, longest=3.0)
"""How to repeat writes that a busy cluster rejected."""
_REQUEST_TIMEOUT = 15.0
_MAX_BATCH_BYTES = 16 * 2**10
"""Maximum size of the values in one write. Older servers reject batches above 50 KB, even if they write to one
partition."""
_MAX_ROW_BYTES = 16 * 2**20
"""Default maximum size of the values in one row. Servers before 4.1 fail to write a larger row without giving this
reason."""
_CONVERSION_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError, KeyError)
"""The driver's errors for a value that its column cannot store."""
_MESSAGE = re.compile(r'message="(.*)"$', re.DOTALL)


@dataclass(frozen=True, slots=True)
class CassandraConnection:
    """The address of a cluster and the connection settings. Different connections have different `cache_key`s."""

    hosts: tuple[tuple[str, int], ...]
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    options: Any = field(repr=False)
    cache_key: str

    def connect(self, defaults: Mapping[str, Any] = MappingProxyType({})) -> tuple[Any, Any]:
        """Return a cluster, which the caller shuts down, and a session. The user's options override `defaults`."""
        options: Mapping[str, Any] = self.options() if callable(self.options) else self.options
        return cql.connect(self.hosts, self.username, self.password, {**defaults, **options})


@dataclass(frozen=True, slots=True)
class CassandraWriter:
    """Stores rows of one schema. `generation` is that of their topic; None if the offset is not a version."""

    sink: str
    connection: CassandraConnection
    insert: str
    delete: str
    names: tuple[str, ...]
    types: Mapping[str, CqlType]
    key: tuple[str, ...]
    generation: int | None
    ttl: str | int | None
    consistency: str

    def __repr__(self) -> str:
        return self.sink

    def __call__(self, rows: Sequence[Row]) -> Sequence[tuple[Row, str]]:
        if not rows:
            return []
        cache_key = ("cassandra", self.connection.cache_key)
        try:
            with cql.translate_errors(self):
                session: _WriteSession = tasks.worker_cached(cache_key, lambda: _WriteSession(self.connection))
                return self._store(session, rows)
        except RetriableError:
            tasks.evict(cache_key)
            raise

    def _store(self, session: _WriteSession, rows: Sequence[Row]) -> list[tuple[Row, str]]:
        rejected, writes = [], []
        for row in rows:
            try:
                bound = self._bind(session, row)
                _ = bound.routing_key  # encodes the key, so an error is raised here and not in a batch with other rows
                writes.append((row, bound))
            except _CONVERSION_ERRORS as error:
                rejected.append((row, str(error)))
            except struct.error:
                rejected.append((row, f"a part of its key ({', '.join(self.key)}) is above 64 KB"))
        by_server = session.execute(writes)
        if by_server:  # Values are wrong, or the table was replaced: in that case this raises.
            session.prepare(self.insert, self.consistency)
        return rejected + by_server

    def _bind(self, session: _WriteSession, row: Row) -> Any:
        unset = require("cassandra.query", extra="cassandra").UNSET_VALUE
        cell_timestamp = unset
        if self.generation is not None:
            if row.version is None:
                raise ValueError(NO_OFFSET)
            cell_timestamp = timestamp(self.generation, row.version)
        if row.deleted:
            statement = session.statement(self.delete, self.consistency)
            return statement.bind([cell_timestamp, *(self._value(row, name) for name in self.key)])
        ttl = row.values.get(self.ttl) if isinstance(self.ttl, str) else self.ttl
        values = [self._value(row, name) for name in self.names]
        parameters = [*values, cell_timestamp, unset if ttl is None else ttl]
        return session.statement(self.insert, self.consistency).bind(parameters)

    def _value(self, row: Row, name: str) -> Any:
        try:
            value = row.values[name]
            return self.types[name].to_driver(check_key_value(value) if name in self.key else value)
        except _CONVERSION_ERRORS as error:
            raise ValueError(f"{name}: {error}") from error


class _WriteSession:
    """A session, which sends each write to a replica of its row, and its prepared statements."""

    def __init__(self, connection: CassandraConnection) -> None:
        module = require("cassandra.cluster", extra="cassandra")
        policies = require("cassandra.policies", extra="cassandra")
        profile = module.ExecutionProfile(
            load_balancing_policy=policies.TokenAwarePolicy(policies.DCAwareRoundRobinPolicy()),
            retry_policy=policies.FallthroughRetryPolicy(),
            request_timeout=_REQUEST_TIMEOUT,
        )
        token_aware = {
            "execution_profiles": {module.EXEC_PROFILE_DEFAULT: profile},
            "schema_metadata_enabled": True,
            "token_metadata_enabled": True,
        }
        self._cluster, self._session = connection.connect(token_aware)
        self._statements: dict[tuple[str, str], Any] = {}

    def close(self) -> None:
        self._cluster.shutdown()

    def statement(self, text: str, consistency: str) -> Any:
        return self._statements.get((text, consistency)) or self.prepare(text, consistency)

    def prepare(self, text: str, consistency: str) -> Any:
        levels = require("cassandra", extra="cassandra").ConsistencyLevel
        statement = self._session.prepare(text)
        statement.consistency_level = levels.name_to_value[consistency]
        statement.is_idempotent = True
        self._statements[(text, consistency)] = statement
        return statement

    def execute(self, writes: Sequence[tuple[Row, Any]]) -> list[tuple[Row, str]]:
        """Store the rows; return those that the server rejects, with the reason. Raises the driver's errors."""
        cassandra = require("cassandra", extra="cassandra")
        protocol = require("cassandra.protocol", extra="cassandra")
        concurrent = require("cassandra.concurrent", extra="cassandra")
        busy = (
            cassandra.Unavailable,
            cassandra.WriteTimeout,
            cassandra.WriteFailure,
            protocol.OverloadedErrorMessage,
            protocol.IsBootstrappingErrorMessage,
        )
        rejected: list[tuple[Row, str]] = []
        delays = _BUSY.delays()
        groups = _group_by_partition(writes)
        while groups:
            statements = [(_batch_statement(group), ()) for group in groups]
            answers = concurrent.execute_concurrent(
                self._session, statements, _CONCURRENT_WRITES, raise_on_first_error=False
            )
            remaining, delay = [], None
            for group, (done, answer) in zip(groups, answers, strict=True):
                if done:
                    continue
                if isinstance(answer, cassandra.InvalidRequest) and len(group) == 1:
                    rejected.append((group[0][0], _server_message(answer)))
                elif isinstance(answer, cassandra.InvalidRequest):  # the server does not report which row of the group
                    remaining += [[write] for write in group]
                elif isinstance(answer, busy) and (delay := delay or next(delays, None)) is not None:
                    remaining.append(group)
                elif isinstance(answer, cassandra.WriteFailure) and (size := _size(group[0][1])) > _MAX_ROW_BYTES:
                    rejected.append((group[0][0], f"the server fails to write a row of {size:,} bytes"))
                else:
                    raise answer
            groups = remaining
            time.sleep(delay or 0)
        return rejected


def _group_by_partition(writes: Sequence[tuple[Row, Any]]) -> list[list[tuple[Row, Any]]]:
    """Group writes to one partition of the table, up to a size. The server applies a group at once: much faster."""
    full: list[list[tuple[Row, Any]]] = []
    filling: dict[bytes, tuple[list[tuple[Row, Any]], int]] = {}
    for row, bound in writes:
        size = _size(bound)
        group, group_size = filling.get(bound.routing_key, ([], 0))
        if group and group_size + size > _MAX_BATCH_BYTES:
            full.append(group)
            group, group_size = [], 0
        group.append((row, bound))
        filling[bound.routing_key] = (group, group_size + size)
    return full + [group for group, _ in filling.values()]


def _size(bound: Any) -> int:
    return sum(len(value) for value in bound.values if isinstance(value, bytes))


def _batch_statement(group: Sequence[tuple[Row, Any]]) -> Any:
    (_, first), *others = group
    if not others:
        return first
    query = require("cassandra.query", extra="cassandra")
    batch = query.BatchStatement(query.BatchType.UNLOGGED, consistency_level=first.consistency_level)
    for _, bound in group:
        batch.add(bound)
    return batch


def _server_message(error: Exception) -> str:
    match = _MESSAGE.search(str(error))
    return match[1] if match else str(error)
