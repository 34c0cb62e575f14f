"""What the executors do for the Cassandra sink: many small writes at a time, each of them repeatable."""

from __future__ import annotations

import re
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.connectors.cassandra import client as cql
from headrace.connectors.cassandra.types import key_part
from headrace.connectors.shared.topic_generations import NO_OFFSET, timestamp
from headrace.errors import RetriableError
from headrace.spark import tasks
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.connectors.cassandra.types import CqlType
    from headrace.connectors.shared.keyed_sink import Row

_AT_ONCE = 64
_WAITS = (0.1, 0.3, 1.0, 3.0)
"""Seconds before each of the writes that a busy cluster turned down is tried again."""
_ANSWER_SECONDS = 15.0
_BATCH_BYTES = 16 * 2**10
"""Of values in one write. Servers refuse batches above 50 KB, but for later ones, where they are to one partition."""
_LARGEST = 16 * 2**20
"""Of values in one row, unless a server is set otherwise. Those before 4.1 say no more of it than that they failed."""
_NO_VALUE = (TypeError, ValueError, ArithmeticError, AttributeError, KeyError)
"""What the driver raises for a value that its column does not have."""
_MESSAGE = re.compile(r'message="(.*)"$', re.DOTALL)


@dataclass(frozen=True, slots=True)
class CassandraTarget:
    """A cluster, and how to get in. `mark` tells two of them apart."""

    hosts: tuple[tuple[str, int], ...]
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    options: Any = field(repr=False)
    mark: str

    def settings(self) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self.options() if callable(self.options) else self.options
        return made


@dataclass(frozen=True, slots=True)
class CassandraWriter:
    """Stores rows of one schema. `era` is that of the topic they come from; None where no offset is a version."""

    sink: str
    place: CassandraTarget
    insert: str
    delete: str
    names: tuple[str, ...]
    kinds: Mapping[str, CqlType]
    key: tuple[str, ...]
    era: int | None
    ttl: str | int | None
    consistency: str

    def __repr__(self) -> str:
        return self.sink

    def __call__(self, rows: Sequence[Row]) -> Sequence[tuple[Row, str]]:
        if not rows:
            return []
        kept = ("cassandra", self.place.mark)
        try:
            with cql.translate_error(self):
                client: _Client = tasks.worker_cached(kept, lambda: _Client(self.place))
                return self._stored(client, rows)
        except RetriableError:
            tasks.evict(kept)
            raise

    def _stored(self, client: _Client, rows: Sequence[Row]) -> list[tuple[Row, str]]:
        refused, waiting = [], []
        for row in rows:
            try:
                bound = self._bound(client, row)
                _ = bound.routing_key  # packed when it is first read
                waiting.append((row, bound))
            except _NO_VALUE as error:
                refused.append((row, str(error)))
            except struct.error:
                refused.append((row, f"a part of its key ({', '.join(self.key)}) is above 64 KB"))
        found = client.carry_out(waiting)
        if found:  # by its values, or because the table is another one now: then this raises
            client.prepare(self.insert, self.consistency)
        return refused + found

    def _bound(self, client: _Client, row: Row) -> Any:
        unset = require("cassandra.query", extra="cassandra").UNSET_VALUE
        stamp = unset
        if self.era is not None:
            if row.version is None:
                raise ValueError(NO_OFFSET)
            stamp = timestamp(self.era, row.version)
        if row.deleted:
            statement = client.statement(self.delete, self.consistency)
            return statement.bind([stamp, *(self._value(row, name) for name in self.key)])
        lifetime = row.values.get(self.ttl) if isinstance(self.ttl, str) else self.ttl
        values = [self._value(row, name) for name in self.names]
        return client.statement(self.insert, self.consistency).bind(
            [*values, stamp, unset if lifetime is None else lifetime]
        )

    def _value(self, row: Row, name: str) -> Any:
        try:
            value = row.values[name]
            return self.kinds[name].value(key_part(value) if name in self.key else value)
        except _NO_VALUE as error:
            raise ValueError(f"{name}: {error}") from error


class _Client:
    """A session that knows where each row lives, and what is prepared in it."""

    def __init__(self, place: CassandraTarget) -> None:
        module = require("cassandra.cluster", extra="cassandra")
        policies = require("cassandra.policies", extra="cassandra")
        profile = module.ExecutionProfile(
            load_balancing_policy=policies.TokenAwarePolicy(policies.DCAwareRoundRobinPolicy()),
            retry_policy=policies.FallthroughRetryPolicy(),
            request_timeout=_ANSWER_SECONDS,
        )
        routed = {
            "execution_profiles": {module.EXEC_PROFILE_DEFAULT: profile},
            "schema_metadata_enabled": True,
            "token_metadata_enabled": True,
        }
        options = {**routed, **place.settings()}
        self._cluster, self._session = cql.connect(place.hosts, place.username, place.password, options)
        self._prepared: dict[tuple[str, str], Any] = {}

    def close(self) -> None:
        self._cluster.shutdown()

    def statement(self, text: str, consistency: str) -> Any:
        return self._prepared.get((text, consistency)) or self.prepare(text, consistency)

    def prepare(self, text: str, consistency: str) -> Any:
        levels = require("cassandra", extra="cassandra").ConsistencyLevel
        made = self._session.prepare(text)
        made.consistency_level = levels.name_to_value[consistency]
        made.is_idempotent = True
        self._prepared[(text, consistency)] = made
        return made

    def carry_out(self, writes: Sequence[tuple[Row, Any]]) -> list[tuple[Row, str]]:
        """Those that the server refuses, each with its reason. Raises the driver's errors."""
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
        refused: list[tuple[Row, str]] = []
        waits = iter(_WAITS)
        groups = _grouped(writes)
        while groups:
            answers = concurrent.execute_concurrent(
                self._session, [(_together(group), ()) for group in groups], _AT_ONCE, raise_on_first_error=False
            )
            again, wait = [], None
            for group, (done, answer) in zip(groups, answers, strict=True):
                if done:
                    continue
                if isinstance(answer, cassandra.InvalidRequest) and len(group) == 1:
                    refused.append((group[0][0], _said(answer)))
                elif isinstance(answer, cassandra.InvalidRequest):  # of one of them, which it does not say
                    again += [[write] for write in group]
                elif isinstance(answer, busy) and (wait := wait or next(waits, None)) is not None:
                    again.append(group)
                elif isinstance(answer, cassandra.WriteFailure) and (size := _size(group[0][1])) > _LARGEST:
                    refused.append((group[0][0], f"the server fails to write a row of {size:,} bytes"))
                else:
                    raise answer
            groups = again
            time.sleep(wait or 0)
        return refused


def _grouped(writes: Sequence[tuple[Row, Any]]) -> list[list[tuple[Row, Any]]]:
    """Those to one partition of the table together: that is one write to the server, and many times as fast."""
    full: list[list[tuple[Row, Any]]] = []
    filling: dict[bytes, tuple[list[tuple[Row, Any]], int]] = {}
    for row, bound in writes:
        place = bound.routing_key
        size = _size(bound)
        group, so_far = filling.get(place, ([], 0))
        if group and so_far + size > _BATCH_BYTES:
            full.append(group)
            group, so_far = [], 0
        group.append((row, bound))
        filling[place] = (group, so_far + size)
    return full + [group for group, _ in filling.values()]


def _size(bound: Any) -> int:
    return sum(len(value) for value in bound.values if isinstance(value, bytes))


def _together(group: Sequence[tuple[Row, Any]]) -> Any:
    (_, first), *more = group
    if not more:
        return first
    query = require("cassandra.query", extra="cassandra")
    batch = query.BatchStatement(query.BatchType.UNLOGGED, consistency_level=first.consistency_level)
    for _, bound in group:
        batch.add(bound)
    return batch


def _said(error: Exception) -> str:
    """The server's own words."""
    found = _MESSAGE.search(str(error))
    return found[1] if found else str(error)
