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
LONGEST = 100 * 366 * 24 * 3600.0
"""Maximum time to live in seconds. Redis rejects a larger value only after it has written the row."""
_PIECE_ROWS, _PIECE_SIZE = 500, 1_000_000
_MOST_OF_ONE_RECORD = 50_000


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
        kept = ("redis", self.url)
        try:
            yield tasks.worker_cached(kept, lambda: server.connect(self.url))
        except (redis.RedisError, OSError) as error:
            found = server.translate_error(error, self.sink, rights=RIGHTS)
            if isinstance(found, RetriableError):
                tasks.evict(kept)
            raise found from error

    def guard(self, key: str) -> str:
        """The key of the guard for `key`. The braces assign both keys to one node of a cluster."""
        return f"headrace:guard:{{{key}}}"


@dataclass(frozen=True, slots=True)
class Put:
    """Writes a hash or a string per row. `ttl` is a number of seconds, or a column with the seconds."""

    place: RedisTarget
    structure: str
    key: tuple[str, ...]
    plain: Mapping[str, Callable[[Any], Any]]
    guarded: bool
    ttl: float | str | None
    keep_deleted: float

    def __call__(self, rows: Sequence[Row]) -> Sequence[tuple[Row, str]]:
        refused: list[tuple[Row, str]] = []
        taken: list[tuple[Row, Call]] = []
        for row in rows:
            lives = self._lives(row)
            if lives is not None and not 0 < lives <= LONGEST:
                refused.append(
                    (row, f"{self.ttl} is {lives:g}: a row lives for more than no time, and up to 100 years")
                )
            else:
                taken.append((row, self._call(row, lives)))
        with self.place.client() as client:
            answers = call(client, PUT, [made for _, made in taken])
            for (row, ((key, *_), _)), answer in zip(taken, answers, strict=True):
                if isinstance(answer, Exception):
                    raise answer
                if isinstance(answer, str):
                    refused.append((row, f"WRONGTYPE: {key} is there already, as a {answer}, not a {self.structure}"))
        return refused

    def _lives(self, row: Row) -> float | None:
        if not isinstance(self.ttl, str):
            return self.ttl
        found = None if row.deleted else row.values.get(self.ttl)
        return None if found is None else float(found)

    def _call(self, row: Row, lives: float | None) -> Call:
        key = key_of(self.place.name, row.key, tuple(self.plain[name] for name in self.key))
        # After a row has expired, an older version must not be written, either.
        guard_lives = self.keep_deleted if row.deleted else None if lives is None else lives + self.keep_deleted
        values = {name: value for name, value in row.values.items() if name != self.ttl}
        head = [self.structure, row.source or "", str(row.version or 0), _millis(lives), _millis(guard_lives)]
        keys = [key, self.place.guard(key)] if self.guarded else [key]
        if row.deleted:
            return keys, [*head, "delete"]
        if self.structure == "string":
            return keys, [*head, "put", as_json(values, self.plain)]
        return keys, [*head, "put", *as_fields(values, self.plain)]


def _millis(seconds: float | None) -> str:
    return "" if seconds is None else str(max(1, int(seconds * 1000)))


@dataclass(frozen=True, slots=True)
class Append:
    """Appends rows to a stream or list in chunks. Each chunk atomically moves the guard of its partition: rows below
    the guard are already stored. Chunks are sent in order: a later one must not overtake one that failed."""

    place: RedisTarget
    structure: str
    pipeline: str
    plain: Mapping[str, Callable[[Any], Any]]
    ranges: tuple[Range, ...]
    topic_ids: Mapping[str, str]
    epoch: int
    maxlen: int | None
    origin: str | None
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> tasks.Report:
        rejected = RejectedRows(self.place.sink, self.limit)
        count = 0
        for at, arguments, rows in self._pieces(group_by_record(batches, rejected), rejected):
            self._append(at, arguments)
            count += rows
        return tasks.Report(count, refused=rejected.rows)

    def _pieces(
        self, found: Iterator[tuple[RecordId, list[dict[str, Any]]]], rejected: RejectedRows
    ) -> Iterator[tuple[RecordId, list[str | bytes], int]]:
        """The script arguments of each chunk and its last record. A chunk has complete records of one partition."""
        piece: list[str | bytes] = []
        last: RecordId | None = None
        rows = size = 0
        for origin, several in found:
            self._check(origin, len(several))
            if last is not None and (last[:2] != origin[:2] or rows >= _PIECE_ROWS or size >= _PIECE_SIZE):
                yield last, piece, rows
                piece, rows, size = [], 0, 0
            last = origin
            for row in several:
                if entry := self._entry(origin, row, rejected):
                    piece += [str(origin.offset), str(len(entry)), *entry]
                    rows += 1
                    size += sum(len(item) for item in entry)
        if last is not None:
            yield last, piece, rows

    def _check(self, origin: RecordId, rows: int) -> None:
        ours = [r for r in self.ranges if (r.at.topic, r.at.partition) == origin[:2]]
        if not ours or not ours[0].start <= origin.offset < ours[0].until:
            raise ConfigError(
                f"{self.place.sink}: a row says that it comes from {origin}, which is not in this batch",
                hint="leave _kafka as it is in the transform",
            )
        if rows > _MOST_OF_ONE_RECORD:
            raise ConfigError(
                f"{self.place.sink}: {rows:,} rows come from one record ({origin}); they are appended in one step,"
                f" which takes {_MOST_OF_ONE_RECORD:,}",
                hint="make less of a record",
            )

    def _entry(self, origin: RecordId, row: dict[str, Any], rejected: RejectedRows) -> list[str | bytes]:
        if self.structure == "list":
            return [as_json(row, self.plain)]
        made = as_fields(row, self.plain)
        if self.origin is not None:
            made += [self.origin, ":".join(str(part) for part in origin)]
        if not made:
            rejected.add(origin, "every column is NULL, and an entry of a stream has a field at least")
        if len(made) > MAX_VALUES:
            most = MAX_VALUES // 2
            rejected.add(
                origin, f"an entry of a stream takes up to {most:,} fields, and this row has {len(made) // 2:,}"
            )
            return []
        return made

    def _append(self, last: RecordId, arguments: list[str | bytes]) -> None:
        # One guard per epoch: records that are read again after offsets were moved back are appended again.
        epoch = f"@{self.epoch}" if self.epoch else ""
        field = f"{self.pipeline} {self.topic_ids.get(last.topic, '')}:{last.partition}{epoch}"
        head = [self.structure, field, str(last.offset + 1), "" if self.maxlen is None else str(self.maxlen)]
        keys = [self.place.name, self.place.guard(self.place.name)]
        with self.place.client() as client:
            (answer,) = call(client, APPEND, [(keys, [*head, *arguments])])
            if isinstance(answer, Exception):
                raise answer


@dataclass(frozen=True, slots=True)
class Add:
    """Adds members to a set. Adding one twice has no effect, so no guard is needed. `member`: a column; None: all."""

    place: RedisTarget
    plain: Mapping[str, Callable[[Any], Any]]
    member: str | None
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> tasks.Report:
        rejected = RejectedRows(self.place.sink, self.limit)
        count = 0
        rows = iter_rows(batches, rejected)
        while piece := list(islice(rows, _PIECE_ROWS)):
            members = [made for origin, row in piece if (made := self._member(origin, row, rejected)) is not None]
            if members:
                with self.place.client() as client:
                    client.sadd(self.place.name, *members)
            count += len(members)
        return tasks.Report(count, refused=rejected.rows)

    def _member(self, origin: RecordId | None, row: dict[str, Any], rejected: RejectedRows) -> str | bytes | None:
        if self.member is None:
            return as_json(row, self.plain)
        if row[self.member] is None:
            rejected.add(origin, f"{self.member}, which is the member of the set, is NULL")
            return None
        return as_text(row[self.member], self.plain[self.member])
