"""Records on which the transform raises: found by halving the batch, then diverted to the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from headrace.core.dead_letters import RecordId
from headrace.core.error_markers import FUNCTION_STATES, KAFKA_CONDITION, VALUE_STATES
from headrace.engine import transform_check
from headrace.engine.dead_letter_records import exclude
from headrace.engine.row_independence import indivisible
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
"""Without those that a value may raise, too: None has no method upper."""
_MOST = 100
"""Records of one batch that are looked for: each costs about forty small Spark jobs."""
_MANY = 10
"""A batch of so many records all of which fail has a broken transform, not bad records."""
_REASON = 4_000
"""Characters of a traceback that a dead letter keeps."""
_TRIES = 3


class Poison:
    """What is known in one run of records that the transform cannot take.

    `limited` is the time limit of a batch: each part of one that is looked at has as much time as the whole.
    `conditions` are those that the rows are expected to meet: one may fail on a row, as the transform may.
    """

    def __init__(
        self,
        inputs: SourceReaders,
        transform: Callable[..., DataFrame],
        letters: DeadLetters | None,
        limited: Callable[[Batch], AbstractContextManager[None]],
        conditions: Iterable[str] = (),
        *,
        patient: bool,
    ) -> None:
        self._inputs = inputs
        self._transform = transform
        self._letters = letters
        self._limited = limited
        self._conditions = conditions
        self._tries = _TRIES if patient else 1
        self._batch: Batch | None = None
        self._failures: dict[str, int] = {}
        self._diverted: dict[RecordId, str] = {}

    def diverted(self, batch: Batch) -> Mapping[RecordId, str]:
        """The records of `batch` that were found, each with the reason."""
        if self._batch != batch:
            # A sink that journals nothing gets a longer batch after each failure, as records arrive: what is known of a
            # record stays true, and only a batch that starts elsewhere has failed none of the times before.
            known = self._batch or Batch(0, ())
            if not _starts(known) & _starts(batch):
                self._failures = {}
            self._diverted = {
                origin: why
                for origin, why in self._diverted.items()
                if _contains(batch, origin) and batch.topic_ids.get(origin.topic) == known.topic_ids.get(origin.topic)
            }
            self._batch = batch
        return self._diverted

    def raised(self, batch: Batch, error: Exception) -> Exception:
        """What becomes of an exception that the transform itself raised, on the driver."""
        if isinstance(error, HeadraceError | PySparkException | Py4JError | OSError):
            return error
        if not isinstance(error, _PROGRAMMING) and not self._again(batch, f"{type(error)} {error} {user_line(error)}"):
            return error
        return TransformFailed(f"the transform raised {type(error).__name__}: {_said(error)}", hint=_CORRECT)

    def found(self, batch: Batch, error: Exception) -> HeadraceError | None:
        """What to do about `error`, with which writing `batch` failed; None if no record is the cause, or not yet.

        BatchChanged: the records that cause it were found, and `diverted` has them.
        """
        cause = _of_rows(error)
        if cause is None:
            return None
        if _programming(cause):
            return TransformFailed(f"the transform fails: {_said(cause)}", hint=_CORRECT)
        certain = any(state.startswith(VALUE_STATES) for state, _ in sql_states(cause))
        if not certain and not self._again(batch, "rows"):
            return None
        before = dict(self.diverted(batch))
        frames, rows = self._rows(batch, batch.ranges)
        if (step := indivisible(rows, frames)) is not None:
            return TransformFailed(
                f"the transform fails: {_said(cause)}",
                hint=f"it has a step over several records ({step}), so the one that fails cannot be found: {_CORRECT}",
            )
        most = _MOST if self._letters is None else min(_MOST, self._letters.limit_for(batch))
        wanted = 1 if self._letters is None else most + 1 - len(before)
        failed = bisect(batch.ranges, lambda part: self._failure(batch, part), wanted)
        if not failed:
            return None  # what fails is not the transform
        new = {origin: failure for origin, failure in failed.items() if origin not in before}
        if not new:  # it is repeated only with fewer records than before, so this ends
            return TransformFailed(f"the transform fails without any record: {_said(cause)}", hint=_CORRECT)
        first, reason = next(iter(new.items()))
        if self._letters is None:
            return BadRecord(f"{first}: the transform fails: {_said(reason)}", hint=f"dead_letters=…; or {_CORRECT}")
        if len(before) + len(new) > most or len(before) + len(new) == len(batch) >= _MANY:
            of_many = len(before) + len(new) > most
            many = f"more than {counted(most, 'record')}" if of_many else f"all {counted(len(batch), 'record')}"
            return TransformFailed(
                f"the transform fails on {many} of batch {batch.id}; the first: {first}: {_said(reason)}",
                hint=f"{_CORRECT}; nothing of the batch was stored",
            )
        self._diverted.update((origin, _reason(failure)) for origin, failure in new.items())
        more = f", and {len(new) - 1:,} more" if len(new) > 1 else ""
        return BatchChanged(f"{first}{more} to the dead letters: the transform fails: {_said(reason)}")

    def _again(self, batch: Batch, what: str) -> bool:
        """Whether `what` has happened to `batch` so often that it will not pass by itself."""
        self.diverted(batch)
        self._failures[what] = self._failures.get(what, 0) + 1
        return self._failures[what] >= self._tries

    def _failure(self, batch: Batch, ranges: Sequence[Range]) -> Exception | None:
        """What the transform raises on a part of a batch. Any other error, such as a broker that is away, is raised."""
        try:
            with self._limited(batch):
                _, rows = self._rows(batch, ranges)
                rows.write.format("noop").mode("overwrite").save()
        except Exception as error:
            if (cause := _of_rows(error)) is None:
                raise
            return cause
        return None

    def _rows(self, batch: Batch, ranges: Sequence[Range]) -> tuple[list[DataFrame], DataFrame]:
        """Of a part of a batch: the records, and the transformed rows with all that is computed of them."""
        raw = RawBatch(self._inputs, Batch(batch.id, tuple(ranges), batch.topic_ids)).frames
        frames = {}
        for name, one in self._inputs.each.items():
            left = exclude(raw[name], self._diverted)
            frames[name] = one.decoder.decode(left).rows if self._letters is None else one.decoder.judged(left).good
        rows = transform_check.apply(self._transform, self._inputs.given(frames))
        asked = [sql.expr(condition).alias(f"_{n}") for n, condition in enumerate(self._conditions)]
        return list(raw.values()), rows.select("*", *asked) if asked else rows


_CORRECT = "correct the transform"


def bisect(
    ranges: Sequence[Range], failure: Callable[[Sequence[Range]], Exception | None], most: int
) -> dict[RecordId, Exception]:
    """The records for which `failure` has an answer when each is alone, up to `most`, in the order of the ranges.

    None at all if the whole passes: then something else failed.
    """
    found: dict[RecordId, Exception] = {}
    left = [[r for r in ranges if len(r)]]
    while left and len(found) < most:
        part = left.pop()
        size = sum(len(r) for r in part)
        if not size or (error := failure(part)) is None:
            continue
        if size == 1:
            (one,) = part
            found[RecordId(one.at.topic, one.at.partition, one.start)] = error
            continue
        left += reversed(_halves(part, size // 2))
    return found


def _starts(batch: Batch) -> set[tuple[TopicPartition, int, str | None]]:
    return {(r.at, r.start, batch.topic_ids.get(r.at.topic)) for r in batch.ranges if len(r)}


def _contains(batch: Batch, origin: RecordId) -> bool:
    at = TopicPartition(origin.topic, origin.partition)
    return any(r.at == at and r.start <= origin.offset < r.until for r in batch.ranges)


def _halves(ranges: Sequence[Range], size: int) -> tuple[list[Range], list[Range]]:
    """The first `size` offsets, and the others."""
    first, second = [], []
    for r in ranges:
        cut = min(r.until, r.start + max(0, size))
        size -= len(r)
        first.append(Range(r.at, r.start, cut))
        second.append(Range(r.at, cut, r.until))
    return [r for r in first if len(r)], [r for r in second if len(r)]


def _of_rows(error: BaseException | None) -> Exception | None:
    """The error in the chain of `error` that a value of a row raised, in an expression or in a function."""
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


def _programming(error: Exception) -> bool:
    """Whether a function fails whatever the record is. All names count: an exception may quote a record that has the
    text of a traceback, and what is raised while another one is handled needs a record that raises that."""
    names = raised_on_worker(error)
    return bool(names) and _PROGRAMMING_ON_WORKER.issuperset(names)


def _said(error: BaseException) -> str:
    where = user_line(error)
    return short(error) + (f" ({where})" if where else "")


def _reason(error: Exception) -> str:
    """The error and its traceback in the user's code, for a dead letter."""
    frames = in_user_code(error).rstrip()
    return f"{_said(error)}\n{frames}"[:_REASON].rstrip() if frames else _said(error)[:_REASON]
