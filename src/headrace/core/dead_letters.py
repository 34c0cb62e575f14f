"""Dead letters: records that cannot be stored, kept whole with the reason, in the same delivery unit as the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BadRecord, ConfigError
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from headrace.types import Batch

MAX_DEAD_LETTERS = 100_000
"""The most dead letters of one batch, whatever the limit says: they pass through the driver's memory."""


MAX_BYTES = 100_000_000
"""Of the keys, values and headers of one batch's dead letters, unless told otherwise: for the same reason."""


COMPACTED = "the broker has deleted the record since it was read (compaction or retention): its key and value are lost"
_LEFT_OUT = "of key, value and headers are left out: the dead letters of this batch are larger than max_bytes"
TOO_LARGE = "of key, value and headers are left out: the topic of the dead letters takes no record as large"
_LONGEST_ERROR = 10_000
"""Characters of a reason: it may quote a value, and it is in no count of bytes."""
ASIDE = 'dead_letters="…" puts such records aside; or correct them in the transform'


class RecordId(NamedTuple):
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record as Kafka had it, why it could not be stored, and where that was found out."""

    origin: RecordId
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    error: str
    place: str

    @property
    def size(self) -> int:
        """The bytes of its key, value and headers."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    @property
    def left_out(self) -> bool:
        """Whether it has no bytes because the letters of its batch have too many."""
        return self._bare and _LEFT_OUT in self.error

    @property
    def gone(self) -> bool:
        """Whether it does not hold the record, for whatever reason."""
        return self._bare and any(reason in self.error for reason in (_LEFT_OUT, TOO_LARGE, COMPACTED))

    @property
    def _bare(self) -> bool:
        return self.key is None and self.value is None and not self.headers

    def without_bytes(self, size: int | None = None, reason: str = _LEFT_OUT) -> DeadLetter:
        """The same, with the `size` of what is left out in place of the bytes."""
        said = f"{self.error} ({counted(self.size if size is None else size, 'byte')} {reason})"
        return replace(self, key=None, value=None, headers=(), error=said)


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that a sink would not take, by the record it came from."""

    origin: RecordId
    error: str
    place: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", shortened(self.error))


def shortened(error: str) -> str:
    """A reason without the middle of what is too long to keep."""
    if len(error) <= _LONGEST_ERROR:
        return error
    half = _LONGEST_ERROR // 2
    return f"{error[:half]} … {len(error) - 2 * half:,} characters … {error[-half:]}"


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """Where records go that do not parse, or that the sink refuses: `table`, one of the sink's own, written in the
    same transaction as the rows, or `topic`, on the source's cluster.

    More than `limit` of them in one batch (a number, or a share such as 0.01) stop the pipeline with BadRecord: so many
    failures usually mean a wrong schema or table. Where those of one batch have more than `max_bytes` of keys, values
    and headers, the largest are kept without them.
    """

    table: str | None = None
    topic: str | None = None
    limit: int | float = 1_000
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if (self.table is None) == (self.topic is None):
            raise ConfigError(
                "dead letters go to a table of the sink or to a topic: one of both",
                hint='hr.DeadLetters(table="clicks_dead"), or hr.DeadLetters(topic="clicks-dead")',
            )
        name = self.table if self.topic is None else self.topic
        if not isinstance(name, str) or not name:
            raise ConfigError(f"dead letters: {name!r} is not a name", hint='hr.DeadLetters(table="clicks_dead")')
        share = isinstance(self.limit, float) and 0 < self.limit <= 1
        count = isinstance(self.limit, int) and not isinstance(self.limit, bool) and 0 <= self.limit <= MAX_DEAD_LETTERS
        if not (share or count):
            raise ConfigError(
                f"dead letters: expected limit up to {MAX_DEAD_LETTERS:,} records or a share of 1, got {self.limit!r}",
                hint="limit=1_000, or limit=0.01",
            )

        if not isinstance(self.max_bytes, int) or isinstance(self.max_bytes, bool) or self.max_bytes < 1:
            raise ConfigError(
                f"dead letters: max_bytes={self.max_bytes!r}: expected a whole number of bytes, at least 1",
                hint="max_bytes=100_000_000",
            )

    def most(self, batch: Batch) -> int:
        """How many `batch` may have."""
        # Rounded first: 0.29 of 100 is 28.999999999999996 to a computer.
        return (
            min(MAX_DEAD_LETTERS, int(round(self.limit * len(batch), 6)))
            if isinstance(self.limit, float)
            else self.limit
        )


class DeadLetterBatch:
    """The dead letters of one batch, from the first bad record until the batch is written.

    A sink adds the rows it refuses and then asks for what it must store itself: nothing where a topic takes them.
    """

    def __init__(
        self,
        letters: Sequence[DeadLetter],
        *,
        most: int,
        max_bytes: int = MAX_BYTES,
        originals: Callable[[Sequence[RejectedRow]], Sequence[DeadLetter]],
        table: str | None = None,
        send: Callable[[Sequence[DeadLetter]], None] | None = None,
    ) -> None:
        self.table = table
        self.most = most
        self._max_bytes = max_bytes
        self._letters = {letter.origin: letter for letter in bounded(letters, max_bytes)}
        self._originals = originals
        self._send = send
        self._check()

    @property
    def count(self) -> int:
        return len(self._letters)

    @property
    def left_out(self) -> int:
        """How many are kept without their bytes, because there are too many."""
        return sum(letter.left_out for letter in self._letters.values())

    @property
    def room(self) -> int:
        """How many bytes more may come."""
        return max(0, self._max_bytes - sum(letter.size for letter in self._letters.values()))

    def refuse(self, refused: Sequence[RejectedRow]) -> None:
        """Set the records of `refused` aside too; BadRecord if those are too many."""
        new = {refusal.origin: refusal for refusal in refused if refusal.origin not in self._letters}
        if not new:
            return
        if len(self._letters) + len(new) > self.most:
            first = next(iter(new.values()))
            raise too_many(self.most, f"{first.origin}: {first.error}")
        found = list(self._originals(list(new.values())))
        self._letters |= {letter.origin: letter for letter in bounded(found, self.room)}
        self._check()

    def settled(self) -> Sequence[DeadLetter]:
        """No more will come: those that go to a topic are there on return, the others are for the sink's table."""
        letters = list(self._letters.values())
        if self._send is not None:
            if letters:
                self._send(letters)
            return []
        return letters

    def _check(self) -> None:
        if len(self._letters) > self.most:
            first = next(iter(self._letters.values()))
            raise too_many(self.most, f"{first.origin}: {first.error}")


def bounded(letters: Sequence[DeadLetter], room: int) -> list[DeadLetter]:
    """All of `letters`, the smallest with their bytes as long as those are not more than `room`."""
    last = last_whole([(letter.size, letter.origin) for letter in letters], room)
    return [
        letter
        if not letter.size or (last is not None and (letter.size, letter.origin) <= last)
        else letter.without_bytes()
        for letter in letters
    ]


def last_whole(sizes: Sequence[tuple[int, RecordId]], room: int) -> tuple[int, RecordId] | None:
    """In the order of size and place, the last that fits into `room` with all before it; None if not even one does.

    By size, so that as many as can be stay whole; by place, so that a batch that is repeated keeps the same ones.
    """
    last, total = None, 0
    for size, origin in sorted(sizes):
        total += size
        if total > room:
            break
        last = (size, origin)
    return last


def too_many(most: int, first: str) -> BadRecord:
    return BadRecord(
        f"more than {counted(most, 'record')} of one batch are bad, the limit for dead letters; the first: {first}",
        hint="look at the records; hr.DeadLetters(…, limit=…) sets the limit",
    )


def refused(sink: str, reason: object, hint: str = ASIDE) -> BadRecord:
    return BadRecord(f"{sink} refuses a row: {reason}", hint=hint)
