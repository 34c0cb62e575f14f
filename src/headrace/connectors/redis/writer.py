"""Runs in the tasks of a batch: writes rows to Redis in chunks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from headrace.connectors.redis import client as server
from headrace.connectors.redis.scripts import APPEND, MAX_VALUES, PUT, call
from headrace.connectors.redis.types import as_fields, as_json, as_text, key_of
from headrace.connectors.shared.log_order import group_by_record, iter_rows
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.errors import ConfigError, RetriableError
from headrace.spark import tasks
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.connectors.redis.scripts import Call
    from headrace.connectors.shared.keyed_sink import Row
    from headrace.core.dead_letters import RecordId
    from headrace.types import Range

RIGHTS = "EVALSHA, SCRIPT LOAD and what is written with"
MAX_TTL = 100 * 366 * 24 * 3600.0
"""Maximum time to live in seconds. Redis rejects a larger value only after it has written the row."""
_CHUNK_ROWS, _CHUNK_SIZE = 500, 1_000_000
_MAX_ROWS_PER_RECORD = 50_000


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """The target of rows: a key, or the prefix of the keys of rows. `sink` is its name in errors."""

    url: str = field(repr=False)
    name: str
    sink: str

    @contextmanager
    def client(self) -> Iterator[Any]:
        """The cached client of this process. Translates errors within the block."""
        redis = require("redis", extra="redis")
        cache_key = ("redis", self.url)
        try:
            yield tasks.worker_cached(cache_key, lambda: server.connect(self.url))
        except (redis.RedisError, OSError) as error:
            found = server.translate_error(error, self.sink, rights=RIGHTS)
            if isinstance(found, RetriableError):
                tasks.evict(cache_key)
            raise found from error

    def guard(self, key: str) -> str:
        """The key of the guard for `key`. The braces assign both keys to one node of a cluster."""
        return f"headrace:guard:{{{key}}}"


@dataclass(frozen=True, slots=True)
class RedisWriter:
    """Writes a hash or a string per row. `ttl` is a number of seconds, or a column with the seconds."""

    target: RedisTarget
    structure: str
    key: tuple[str, ...]
    converters: Mapping[str, Callable[[Any], Any]]
    guarded: bool
    ttl: float | str | None
    keep_deleted: float

    def __call__(self, rows: Sequence[Row]) -> Sequence[tuple[Row, str]]:
        rejected: list[tuple[Row, str]] = []
        accepted: list[tuple[Row, Call]] = []
        for row in rows:
            ttl = self._row_ttl(row)
            if ttl is not None and not 0 < ttl <= MAX_TTL:
                rejected.append((row, f"{self.ttl} is {ttl:g}: expected seconds above 0, up to 100 years"))
            else:
                accepted.append((row, self._call(row, ttl)))
        with self.target.client() as client:
            answers = call(client, PUT, [entry for _, entry in accepted])
            for (row, ((key, *_), _)), answer in zip(accepted, answers, strict=True):
                if isinstance(answer, Exception):
                    raise answer
                if isinstance(answer, str):
                    rejected.append((row, f"WRONGTYPE: {key} exists as a {answer}, not a {self.structure}"))
        return rejected

    def _row_ttl(self, row: Row) -> float | None:
        if not isinstance(self.ttl, str):
            return self.ttl
        found = None if row.deleted else row.values.get(self.ttl)
        return None if found is None else float(found)

    def _call(self, row: Row, ttl: float | None) -> Call:
        key = key_of(self.target.name, row.key, tuple(self.converters[name] for name in self.key))
        # After a row has expired, an older version must not be written, either.
        guard_ttl = self.keep_deleted if row.deleted else None if ttl is None else ttl + self.keep_deleted
        values = {name: value for name, value in row.values.items() if name != self.ttl}
        head = [self.structure, row.source or "", str(row.version or 0), _millis(ttl), _millis(guard_ttl)]
        keys = [key, self.target.guard(key)] if self.guarded else [key]
        if row.deleted:
            return keys, [*head, "delete"]
        if self.structure == "string":
            return keys, [*head, "put", as_json(values, self.converters)]
        return keys, [*head, "put", *as_fields(values, self.converters)]


def _millis(seconds: float | None) -> str:
    return "" if seconds is None else str(max(1, int(seconds * 1000)))


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Appends rows to a stream or list in chunks. Each chunk atomically moves the guard of its partition: rows below
    the guard are already stored. Chunks are sent in order: a later one must not overtake one that failed."""

    target: RedisTarget
    structure: str
    pipeline: str
    converters: Mapping[str, Callable[[Any], Any]]
    ranges: tuple[Range, ...]
    topic_ids: Mapping[str, str]
    epoch: int
    maxlen: int | None
    origin: str | None
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> tasks.Report:
        rejected = RejectedRows(self.target.sink, self.limit)
        count = 0
        for at, arguments, rows in self._chunks(group_by_record(batches, rejected), rejected):
            self._append(at, arguments)
            count += rows
        return tasks.Report(count, refused=rejected.rows)

    def _chunks(
        self, found: Iterator[tuple[RecordId, list[dict[str, Any]]]], rejected: RejectedRows
    ) -> Iterator[tuple[RecordId, list[str | bytes], int]]:
        """The script arguments of each chunk and its last record. A chunk has complete records of one partition."""
        chunk: list[str | bytes] = []
        last: RecordId | None = None
        rows = size = 0
        for origin, rows_of_record in found:
            self._check(origin, len(rows_of_record))
            if last is not None and (last[:2] != origin[:2] or rows >= _CHUNK_ROWS or size >= _CHUNK_SIZE):
                yield last, chunk, rows
                chunk, rows, size = [], 0, 0
            last = origin
            for row in rows_of_record:
                if entry := self._entry(origin, row, rejected):
                    chunk += [str(origin.offset), str(len(entry)), *entry]
                    rows += 1
                    size += sum(len(item) for item in entry)
        if last is not None:
            yield last, chunk, rows

    def _check(self, origin: RecordId, rows: int) -> None:
        ranges = [r for r in self.ranges if (r.at.topic, r.at.partition) == origin[:2]]
        if not ranges or not ranges[0].start <= origin.offset < ranges[0].until:
            raise ConfigError(
                f"{self.target.sink}: a row has the origin {origin}, which is not in this batch",
                hint="do not change _kafka in the transform",
            )
        if rows > _MAX_ROWS_PER_RECORD:
            raise ConfigError(
                f"{self.target.sink}: {rows:,} rows come from one record ({origin}): expected at most"
                f" {_MAX_ROWS_PER_RECORD:,}, because they are appended in one step",
                hint="produce fewer rows from a record",
            )

    def _entry(self, origin: RecordId, row: dict[str, Any], rejected: RejectedRows) -> list[str | bytes]:
        if self.structure == "list":
            return [as_json(row, self.converters)]
        entry = as_fields(row, self.converters)
        if self.origin is not None:
            entry += [self.origin, ":".join(str(part) for part in origin)]
        if not entry:
            rejected.add(origin, "every column is NULL: expected at least one field of an entry of a stream")
        if len(entry) > MAX_VALUES:
            limit = MAX_VALUES // 2
            rejected.add(
                origin, f"an entry of a stream takes up to {limit:,} fields, and this row has {len(entry) // 2:,}"
            )
            return []
        return entry

    def _append(self, last: RecordId, arguments: list[str | bytes]) -> None:
        # One guard per epoch: records that are read again after offsets were moved back are appended again.
        epoch = f"@{self.epoch}" if self.epoch else ""
        field = f"{self.pipeline} {self.topic_ids.get(last.topic, '')}:{last.partition}{epoch}"
        head = [self.structure, field, str(last.offset + 1), "" if self.maxlen is None else str(self.maxlen)]
        keys = [self.target.name, self.target.guard(self.target.name)]
        with self.target.client() as client:
            (answer,) = call(client, APPEND, [(keys, [*head, *arguments])])
            if isinstance(answer, Exception):
                raise answer


@dataclass(frozen=True, slots=True)
class AddTask:
    """Adds members to a set. Adding one twice has no effect, so no guard is needed. `member`: a column; None: all."""

    target: RedisTarget
    converters: Mapping[str, Callable[[Any], Any]]
    member: str | None
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> tasks.Report:
        rejected = RejectedRows(self.target.sink, self.limit)
        count = 0
        rows = iter_rows(batches, rejected)
        while chunk := list(islice(rows, _CHUNK_ROWS)):
            members = [entry for origin, row in chunk if (entry := self._member(origin, row, rejected)) is not None]
            if members:
                with self.target.client() as client:
                    client.sadd(self.target.name, *members)
            count += len(members)
        return tasks.Report(count, refused=rejected.rows)

    def _member(self, origin: RecordId | None, row: dict[str, Any], rejected: RejectedRows) -> str | bytes | None:
        if self.member is None:
            return as_json(row, self.converters)
        if row[self.member] is None:
            rejected.add(origin, f"{self.member}, which is the member of the set, is NULL")
            return None
        return as_text(row[self.member], self.converters[self.member])
