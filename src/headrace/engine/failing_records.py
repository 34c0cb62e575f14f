"""Finds the records on which the transform raises, by bisecting the batch, and diverts them to the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from headrace.core.dead_letters import RecordId
from headrace.core.error_markers import FUNCTION_STATES, KAFKA_CONDITION, VALUE_STATES
from headrace.engine import transform_check
from headrace.engine.dead_letter_records import exclude
from headrace.engine.row_independence import step_over_several_records
from headrace.engine.source_readers import RawBatch
from headrace.errors import BadRecord, BatchChanged, HeadraceError, RetriableError, TransformFailed
from headrace.spark.error_causes import raised_by_expression, sql_states
from headrace.support.tracebacks import in_user_code, raised_on_worker, short, user_line
from headrace.text import counted
from headrace.types import Batch, Range, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    from headrace.core.dead_letters import DeadLetters
    from headrace.engine.source_readers import SourceReaders

_PROGRAMMING = (NameError, TypeError, AttributeError, SyntaxError, NotImplementedError)
_PROGRAMMING_ON_WORKER = {
    error.__name__
    for error in (NameError, UnboundLocalError, ImportError, ModuleNotFoundError, SyntaxError, NotImplementedError)
}
"""Programming errors, without those that a value may cause as well: None has no method upper."""
_MAX_RECORDS = 100
"""Maximum failing records to search for in one batch: each costs about forty small Spark jobs."""
_BROKEN_TRANSFORM_RECORDS = 10
"""If all records of a batch of this size fail, the transform is broken, not the records."""
_MAX_REASON = 4_000
"""Maximum characters of the traceback in a dead letter."""
_MAX_ATTEMPTS = 3


class FailingRecords:
    """The failing records that one run has found so far.

    `timeout` is the time limit of a batch, and also of each part of a batch that is tried.
    `conditions` are those of `expect=`: they may raise on a row, as the transform may.
    """

    def __init__(
        self,
        inputs: SourceReaders,
        transform: Callable[..., DataFrame],
        dead_letters: DeadLetters | None,
        timeout: Callable[[Batch], AbstractContextManager[None]],
        conditions: Iterable[str] = (),
        *,
        patient: bool,
    ) -> None:
        self._inputs = inputs
        self._transform = transform
        self._dead_letters = dead_letters
        self._timeout = timeout
        self._conditions = conditions
        self._max_attempts = _MAX_ATTEMPTS if patient else 1
        self._batch: Batch | None = None
        self._failures: dict[str, int] = {}
        self._diverted: dict[RecordId, str] = {}

    def diverted(self, batch: Batch) -> Mapping[RecordId, str]:
        """The failing records of `batch` that were found, each with the reason."""
        if self._batch != batch:
            # Without a journal the batch is longer after each failure, as records arrive. The records that were found
            # stay valid, and failures are counted from zero only for a batch that starts at other offsets.
            known = self._batch or Batch(0, ())
            if not _starts(known) & _starts(batch):
                self._failures = {}
            self._diverted = {
                origin: reason
                for origin, reason in self._diverted.items()
                if _contains(batch, origin) and batch.topic_ids.get(origin.topic) == known.topic_ids.get(origin.topic)
            }
            self._batch = batch
        return self._diverted

    def on_driver(self, batch: Batch, error: Exception) -> Exception:
        """Translate an exception that the transform itself raised, on the driver."""
        if isinstance(error, HeadraceError | PySparkException | Py4JError | OSError):
            return error
        if not isinstance(error, _PROGRAMMING) and not self._has_repeated(
            batch, f"{type(error)} {error} {user_line(error)}"
        ):
            return error
        return TransformFailed(f"the transform raised {type(error).__name__}: {_describe(error)}", hint=_CORRECT)

    def find(self, batch: Batch, error: Exception) -> HeadraceError | None:
        """Search for the records that made writing `batch` fail with `error`, and return the error to raise.

        BatchChanged: they were found, and `diverted` has them. None: no record is the cause, or it may be temporary.
        """
        cause = _row_error(error)
        if cause is None:
            return None
        if _is_programming_error(cause):
            return TransformFailed(f"the transform fails: {_describe(cause)}", hint=_CORRECT)
        certain = any(state.startswith(VALUE_STATES) for state, _ in sql_states(cause))
        if not certain and not self._has_repeated(batch, "rows"):
            return None
        before = dict(self.diverted(batch))
        frames, rows = self._rows(batch, batch.ranges)
        if (step := step_over_several_records(rows, frames)) is not None:
            return TransformFailed(
                f"the transform fails: {_describe(cause)}",
                hint=f"it has a step over several records ({step}), so the one that fails cannot be found: {_CORRECT}",
            )
        limit = _MAX_RECORDS if self._dead_letters is None else min(_MAX_RECORDS, self._dead_letters.limit_for(batch))
        limit_of_search = 1 if self._dead_letters is None else limit + 1 - len(before)
        failed = bisect(batch.ranges, lambda part: self._failure(batch, part), limit_of_search)
        if not failed:
            return None  # the transform is not the cause
        new = {origin: failure for origin, failure in failed.items() if origin not in before}
        if not new:  # each repeat diverts more records, so this ends
            return TransformFailed(f"the transform fails without any record: {_describe(cause)}", hint=_CORRECT)
        first, failure = next(iter(new.items()))
        if self._dead_letters is None:
            return BadRecord(
                f"{first}: the transform fails: {_describe(failure)}", hint=f"dead_letters=…; or {_CORRECT}"
            )
        count = len(before) + len(new)
        if count > limit or count == len(batch) >= _BROKEN_TRANSFORM_RECORDS:
            many = f"more than {counted(limit, 'record')}" if count > limit else f"all {counted(len(batch), 'record')}"
            return TransformFailed(
                f"the transform fails on {many} of batch {batch.id}; the first: {first}: {_describe(failure)}",
                hint=f"{_CORRECT}; no row of the batch was stored",
            )
        self._diverted.update((origin, _reason(error)) for origin, error in new.items())
        more = f", and {len(new) - 1:,} more" if len(new) > 1 else ""
        return BatchChanged(f"{first}{more} to the dead letters: the transform fails: {_describe(failure)}")

    def _has_repeated(self, batch: Batch, failure: str) -> bool:
        """Whether `batch` has failed in this way so often that the cause is not temporary."""
        self.diverted(batch)
        self._failures[failure] = self._failures.get(failure, 0) + 1
        return self._failures[failure] >= self._max_attempts

    def _failure(self, batch: Batch, ranges: Sequence[Range]) -> Exception | None:
        """The error of the transform on a part of a batch, if any. Other errors, such as a lost broker, are raised."""
        try:
            with self._timeout(batch):
                _, rows = self._rows(batch, ranges)
                rows.write.format("noop").mode("overwrite").save()
        except Exception as error:
            if (cause := _row_error(error)) is None:
                raise
            return cause
        return None

    def _rows(self, batch: Batch, ranges: Sequence[Range]) -> tuple[list[DataFrame], DataFrame]:
        """The records of a part of a batch, and its transformed rows with the conditions evaluated."""
        raw = RawBatch(self._inputs, Batch(batch.id, tuple(ranges), batch.topic_ids)).frames
        frames = {}
        for name, reader in self._inputs.by_name.items():
            records = exclude(raw[name], self._diverted)
            frames[name] = (
                reader.decoder.decode(records).rows
                if self._dead_letters is None
                else reader.decoder.validated(records).good
            )
        rows = transform_check.apply(self._transform, self._inputs.transform_argument(frames))
        conditions = [sql.expr(condition).alias(f"_{n}") for n, condition in enumerate(self._conditions)]
        return list(raw.values()), rows.select("*", *conditions) if conditions else rows


_CORRECT = "correct the transform"


def bisect(
    ranges: Sequence[Range], failure: Callable[[Sequence[Range]], Exception | None], limit: int
) -> dict[RecordId, Exception]:
    """The records for which `failure` returns an error when tried alone: the first `limit`, in the order of the ranges.

    Empty if `ranges` as a whole do not fail.
    """
    found: dict[RecordId, Exception] = {}
    remaining = [[r for r in ranges if len(r)]]
    while remaining and len(found) < limit:
        part = remaining.pop()
        size = sum(len(r) for r in part)
        if not size or (error := failure(part)) is None:
            continue
        if size == 1:
            (r,) = part
            found[RecordId(r.at.topic, r.at.partition, r.start)] = error
            continue
        remaining += reversed(_halves(part, size // 2))
    return found


def _starts(batch: Batch) -> set[tuple[TopicPartition, int, str | None]]:
    return {(r.at, r.start, batch.topic_ids.get(r.at.topic)) for r in batch.ranges if len(r)}


def _contains(batch: Batch, origin: RecordId) -> bool:
    at = TopicPartition(origin.topic, origin.partition)
    return any(r.at == at and r.start <= origin.offset < r.until for r in batch.ranges)


def _halves(ranges: Sequence[Range], size: int) -> tuple[list[Range], list[Range]]:
    """The first `size` offsets, and the rest."""
    first, second = [], []
    for r in ranges:
        cut = min(r.until, r.start + max(0, size))
        size -= len(r)
        first.append(Range(r.at, r.start, cut))
        second.append(Range(r.at, cut, r.until))
    return [r for r in first if len(r)], [r for r in second if len(r)]


def _row_error(error: BaseException | None) -> Exception | None:
    """The error in the chain of `error` that was raised on a value of a row, in an expression or a function."""
    while error is not None:
        if isinstance(error, HeadraceError) and not isinstance(error, RetriableError):
            return None
        if isinstance(error, PySparkException | Py4JJavaError):
            known = [*sql_states(error)]
            if any(condition.startswith(KAFKA_CONDITION) for _, condition in known):
                return None
            if any(state.startswith((*VALUE_STATES, *FUNCTION_STATES)) for state, _ in known) or raised_by_expression(
                error
            ):
                return error
        error = error.__cause__
    return None


def _is_programming_error(error: Exception) -> bool:
    """Whether a function fails for every record.

    All names in the traceback must be programming errors: an exception may quote a record that contains a traceback,
    and one that is raised while another is handled depends on the record that raised the first.
    """
    names = raised_on_worker(error)
    return bool(names) and _PROGRAMMING_ON_WORKER.issuperset(names)


def _describe(error: BaseException) -> str:
    line = user_line(error)
    return short(error) + (f" ({line})" if line else "")


def _reason(error: Exception) -> str:
    """The error with its traceback in the user's code, for a dead letter."""
    frames = in_user_code(error).rstrip()
    return f"{_describe(error)}\n{frames}"[:_MAX_REASON].rstrip() if frames else _describe(error)[:_MAX_REASON]
