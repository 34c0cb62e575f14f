"""The events of a run, which observers receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.types import Batch, Range, TopicPartition


@dataclass(frozen=True, slots=True)
class RunStarted:
    guarantee: str
    steps: tuple[str, ...]
    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PartitionsFound:
    """Partitions that this pipeline reads for the first time, with the offset it starts at."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class PartitionsLeftOut:
    """Partitions that the source does not select although it reads their topics: this pipeline does not read them."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Noted:
    """A note for the user that is not an error; reported once per run."""

    text: str


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """A batch was started. With `replay` it was pending: an earlier run died before its commit."""

    batch: Batch
    replay: bool


@dataclass(frozen=True, slots=True)
class Phases:
    """The seconds that each phase of a batch took.

    `metadata`: requesting end offsets and topic ids, and every `refresh` seconds new partitions;
    `plan`: choosing the ranges; `write`: reading, transforming and writing the rows; `commit`: the offset
    store, before the write (the journal) and after it. A transactional sink commits offsets in its write.
    """

    metadata: float = 0.0
    plan: float = 0.0
    write: float = 0.0
    commit: float = 0.0


@dataclass(frozen=True, slots=True)
class ProduceDelay:
    """Seconds from the timestamps of a batch's records in Kafka to the end of its last step: an estimate.

    The producer sets the timestamp, or the broker if the topic has `message.timestamp.type=LogAppendTime`.
    """

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A batch was stored and its offsets were committed. Values that were not measured are None.

    `seconds` is the time from its first step to its last: the phases `write` and `commit`. `records` were read and
    `rows` written. A range of offsets may have fewer records: transactions and compaction leave offsets without one.
    `bytes` are those of keys and values. `scheduling_delay` is the number of seconds for which this run knew of records
    of the batch before its first step, while they waited for the previous batch or for `min_records`. `produce_delay`
    is estimated for one batch in 10 seconds. `partition_lag` has the partitions that were not read to their end.
    """

    batch: Batch
    seconds: float
    lag: int
    records: int | None = None
    rows: int | None = None
    phases: Phases | None = None
    bytes: int | None = None
    scheduling_delay: float | None = None
    produce_delay: ProduceDelay | None = None
    partition_lag: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRecordsDropped:
    batch: Batch
    count: int


@dataclass(frozen=True, slots=True)
class RecordsQuarantined:
    """Records of this batch went to the dead letters, `left_out` of them without key, value and headers."""

    batch: Batch
    count: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class BatchSkipped:
    """A batch under at-most-once may or may not have been written; it is not written again."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class GapFound:
    """Records that are gone were skipped, as `on_data_loss` says; the audit log records it as well."""

    lost: Range
    reason: str
    resumed_at: int


@dataclass(frozen=True, slots=True)
class MirrorFailed:
    """The consumer group that mirrors the offsets for other tools could not be updated; the pipeline continues."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Nothing is left to read; reported once each time the end is reached."""

    last_batch: int


@dataclass(frozen=True, slots=True)
class Retrying:
    error: BaseException
    attempt: int
    delay: float


@dataclass(frozen=True, slots=True)
class BatchTimedOut:
    """A batch took longer than `timeout`, and its Spark jobs were cancelled; `count` is the total of this run."""

    batch: Batch
    seconds: float
    count: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """A stop was requested; the batch in flight is finished first."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The run ended. `rows` is None if those of a batch were not counted."""

    batches: int
    records: int
    error: BaseException | None
    rows: int | None = None


Event: TypeAlias = (
    RunStarted
    | PartitionsFound
    | PartitionsLeftOut
    | Noted
    | BatchStarted
    | BatchDone
    | BadRecordsDropped
    | RecordsQuarantined
    | BatchSkipped
    | GapFound
    | MirrorFailed
    | CaughtUp
    | Retrying
    | BatchTimedOut
    | Stopping
    | RunStopped
)

Observer: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """An observer that does nothing."""


def combine(*observers: Observer) -> Observer:
    """An observer that passes each event to all of `observers`, in this order."""

    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe
