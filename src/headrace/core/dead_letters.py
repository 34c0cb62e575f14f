"""Dead letters: records that cannot be stored, kept with the reason and delivered with their batch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BadRecord, ConfigError
from headrace.support.validation import check_text, check_whole_number
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from headrace.types import Batch

MAX_DEAD_LETTERS = 100_000
"""The upper bound of every limit: the dead letters of a batch pass through the memory of the driver."""
MAX_BYTES = 100_000_000
"""The default for the keys, values and headers of one batch's dead letters, for the same reason."""
COMPACTED = "the broker has deleted the record since it was read (compaction or retention): its key and value are lost"
_LEFT_OUT = "of key, value and headers are left out: the dead letters of this batch are larger than max_bytes"
TOO_LARGE = "of key, value and headers are left out: the topic of the dead letters takes no record as large"
_LONGEST_ERROR = 10_000
"""Maximum characters of an error text, which may quote a value and which `size` does not include."""
DEAD_LETTER_HINT = 'dead_letters="…" diverts such records; or correct them in the transform'


class RecordId(NamedTuple):
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An undecoded record, the reason why it could not be stored, and the stage or sink that rejected it (`place`).

    Add a new text field at the end, with the default "" for dead letters that were stored before it existed: tables,
    topics and `--json` take their names from TEXT_FIELDS.
    """

    origin: RecordId
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    error: str
    place: str

    @property
    def size(self) -> int:
        """The number of bytes of its key, value and headers."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers

    @property
    def left_out(self) -> bool:
        """Whether its bytes were dropped because the dead letters of its batch exceed max_bytes."""
        return self._has_no_bytes and _LEFT_OUT in self.error

    @property
    def record_missing(self) -> bool:
        """Whether it lacks the bytes of the record, for any reason."""
        return self._has_no_bytes and any(reason in self.error for reason in (_LEFT_OUT, TOO_LARGE, COMPACTED))

    @property
    def _has_no_bytes(self) -> bool:
        return self.key is None and self.value is None and not self.headers

    def without_bytes(self, size: int | None = None, reason: str = _LEFT_OUT) -> DeadLetter:
        """The same without its bytes; the error includes their `size`."""
        error = f"{self.error} ({counted(self.size if size is None else size, 'byte')} {reason})"
        return replace(self, key=None, value=None, headers=(), error=error)


TEXT_FIELDS = tuple(field.name for field in fields(DeadLetter) if field.type == "str")
"""The fields of a stored dead letter: columns in a table, headers in a topic."""
FORMAT = len(TEXT_FIELDS) - 1
"""The format version of stored dead letters. Format 1 has `error` and `place`; each new field made a new format."""


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that a sink rejected, identified by the record it came from."""

    origin: RecordId
    error: str
    place: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", shortened(self.error))


def shortened(error: str) -> str:
    """`error`, without its middle part if it is too long to store."""
    if len(error) <= _LONGEST_ERROR:
        return error
    half = _LONGEST_ERROR // 2
    return f"{error[:half]} … {len(error) - 2 * half:,} characters … {error[-half:]}"


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """The destination of records that cannot be decoded or that the sink rejects: `table`, a table of the sink that is
    written in the same transaction as the rows, or `topic`, on the source's cluster.

    More than `limit` dead letters in one batch (a number, or a share such as 0.01) stop the pipeline with BadRecord: so
    many failures usually mean a wrong schema or table. If the keys, values and headers of one batch exceed `max_bytes`,
    the largest records are stored without them.
    """

    table: str | None = None
    topic: str | None = None
    limit: int | float = 1_000
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        if (self.table is None) == (self.topic is None):
            raise ConfigError(
                "dead letters: expected either a table of the sink or a topic",
                hint='hr.DeadLetters(table="clicks_dead"), or hr.DeadLetters(topic="clicks-dead")',
            )
        name = self.table if self.topic is None else self.topic
        check_text("dead letters", name, hint='hr.DeadLetters(table="clicks_dead")')
        share = isinstance(self.limit, float) and 0 < self.limit <= 1
        count = isinstance(self.limit, int) and not isinstance(self.limit, bool) and 0 <= self.limit <= MAX_DEAD_LETTERS
        if not (share or count):
            raise ConfigError(
                f"dead letters: expected limit up to {MAX_DEAD_LETTERS:,} records or a share of 1, got {self.limit!r}",
                hint="limit=1_000, or limit=0.01",
            )
        check_whole_number("dead letters: max_bytes", self.max_bytes, unit="bytes", hint="max_bytes=100_000_000")

    def limit_for(self, batch: Batch) -> int:
        """The maximum number of dead letters of `batch`."""
        # Rounded first: 0.29 * 100 is 28.999999999999996.
        return (
            min(MAX_DEAD_LETTERS, int(round(self.limit * len(batch), 6)))
            if isinstance(self.limit, float)
            else self.limit
        )


class DeadLetterBatch:
    """The dead letters of one batch, from the first bad record until the batch is written.

    A sink adds the rows that it rejects, then calls `flush`, which returns the dead letters that it must store itself.
    """

    def __init__(
        self,
        letters: Sequence[DeadLetter],
        *,
        limit: int,
        max_bytes: int = MAX_BYTES,
        fetch_records: Callable[[Sequence[RejectedRow]], Sequence[DeadLetter]],
        table: str | None = None,
        send: Callable[[Sequence[DeadLetter]], None] | None = None,
    ) -> None:
        self.table = table
        self.limit = limit
        self._max_bytes = max_bytes
        self._by_record = {letter.origin: letter for letter in within_size(letters, max_bytes)}
        self._fetch_records = fetch_records
        self._send = send
        self._check()

    @property
    def count(self) -> int:
        return len(self._by_record)

    @property
    def left_out(self) -> int:
        """The number of dead letters without their bytes because of max_bytes."""
        return sum(letter.left_out for letter in self._by_record.values())

    @property
    def remaining_bytes(self) -> int:
        """How many more bytes may be added."""
        return max(0, self._max_bytes - sum(letter.size for letter in self._by_record.values()))

    def reject(self, rows: Sequence[RejectedRow]) -> None:
        """Add the records of `rows`; BadRecord if the batch has more dead letters than its limit."""
        new = {row.origin: row for row in rows if row.origin not in self._by_record}
        if not new:
            return
        if len(self._by_record) + len(new) > self.limit:
            first = next(iter(new.values()))
            raise too_many_bad_records(self.limit, f"{first.origin}: {first.error}")
        letters = self._fetch_records(list(new.values()))
        self._by_record |= {letter.origin: letter for letter in within_size(letters, self.remaining_bytes)}
        self._check()

    def flush(self) -> Sequence[DeadLetter]:
        """Send the dead letters if they go to a topic; return those that belong in the sink's table."""
        letters = list(self._by_record.values())
        if self._send is not None:
            if letters:
                self._send(letters)
            return []
        return letters

    def _check(self) -> None:
        if len(self._by_record) > self.limit:
            first = next(iter(self._by_record.values()))
            raise too_many_bad_records(self.limit, f"{first.origin}: {first.error}")


def within_size(letters: Sequence[DeadLetter], max_bytes: int) -> list[DeadLetter]:
    """All of `letters`: the smallest ones, up to `max_bytes` in total, with their bytes, the others without."""
    last = size_cutoff([(letter.size, letter.origin) for letter in letters], max_bytes)
    return [
        letter
        if not letter.size or (last is not None and (letter.size, letter.origin) <= last)
        else letter.without_bytes()
        for letter in letters
    ]


def size_cutoff(sizes: Sequence[tuple[int, RecordId]], max_bytes: int) -> tuple[int, RecordId] | None:
    """In order of size and record id, the last one that fits into `max_bytes` with all before it; None if none does.

    The order by size keeps the bytes of as many as possible; the record id makes a repeated batch keep the same ones.
    """
    last, total = None, 0
    for size, origin in sorted(sizes):
        total += size
        if total > max_bytes:
            break
        last = (size, origin)
    return last


def too_many_bad_records(limit: int, first: str) -> BadRecord:
    return BadRecord(
        f"expected at most {counted(limit, 'dead letter')} in one batch, got more; the first: {first}",
        hint="check the records; hr.DeadLetters(…, limit=…) sets the limit",
    )


def rejected_row_error(sink: str, reason: object, hint: str = DEAD_LETTER_HINT) -> BadRecord:
    return BadRecord(f"{sink} rejects a row: {reason}", hint=hint)
