"""Runs in the tasks: calls the user's functions row by row, with marks, or once for all rows."""

from __future__ import annotations

import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.connectors.shared import log_order
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.spark import tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import DataType, StructType

    from headrace.connectors.foreach.effect_guard import EffectGuard
    from headrace.core.dead_letters import RecordId
    from headrace.spark.tasks import Report

    Row = dict[str, Any]

_CHUNK_ROWS = 100


@dataclass(frozen=True, slots=True)
class UserFunctions:
    """The functions that the user gave to the sink."""

    fn: Callable[..., object]
    open: Callable[[], Any] | None
    close: Callable[[Any], object] | None

    @contextmanager
    def bind(self) -> Iterator[Callable[[Any], object]]:
        """`fn` as a function of one argument; its resource, if it has one, is bound."""
        if self.open is None:
            yield self.fn
            return
        resource = self.open()
        close = partial(self.close, resource) if self.close is not None else lambda: None
        try:
            yield lambda rows: self.fn(rows, resource)
        except BaseException:
            with suppress(Exception):  # the first error is raised
                close()
            raise
        close()


@dataclass(frozen=True, slots=True)
class Task:
    calls: UserFunctions
    per: str
    once: EffectGuard | None
    shape: Callable[[Row], Row]
    sink: str
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> Report:
        rejected = RejectedRows(self.sink, self.limit)
        try:
            with self.calls.bind() as fn:
                if self.per == "partition":
                    count = self._call_per_partition(fn, batches, rejected)
                elif self.once is None:
                    count = self._call_per_row(fn, batches, rejected)
                else:
                    count = self._call_unmarked(fn, batches, self.once, rejected)
            return tasks.Report(count, refused=rejected.rows)
        except HeadraceError:
            raise
        except Exception as error:
            raise RetriableError(f"{self.sink}: {_error_text(error)}", hint="the batch is repeated") from error

    def _call_per_partition(self, fn: Callable[[Any], object], batches: Iterator[Any], rejected: RejectedRows) -> int:
        count = 0

        def rows() -> Iterator[Row]:
            nonlocal count
            for _, row in log_order.iter_rows(batches, rejected, _CHUNK_ROWS):
                count += 1
                yield self.shape(row)

        fn(rows())
        return count

    def _call_per_row(self, fn: Callable[[Row], object], batches: Iterator[Any], rejected: RejectedRows) -> int:
        count = 0
        for origin, row in log_order.iter_rows(batches, rejected, _CHUNK_ROWS):
            count += self._call(partial(fn, self.shape(row)), origin, rejected)
        return count

    def _call_unmarked(
        self, fn: Callable[[Row], object], batches: Iterator[Any], once: EffectGuard, rejected: RejectedRows
    ) -> int:
        count = 0
        messages = self._with_messages(batches, once, rejected)
        while chunk := list(islice(messages, _CHUNK_ROWS)):
            done = once.find_done([message for message, _, _ in chunk])
            for message, origin, row in chunk:
                if message in done:
                    continue
                effect = partial(once.run_once, message, partial(fn, self.shape(row)))
                if self._call(effect, origin, rejected):
                    done.add(message)
                    count += 1
        return count

    def _with_messages(
        self, batches: Iterator[Any], once: EffectGuard, rejected: RejectedRows
    ) -> Iterator[tuple[str, RecordId | None, Row]]:
        before: RecordId | None = None
        number = 0
        for origin, row in log_order.iter_rows(batches, rejected, _CHUNK_ROWS):
            number = number + 1 if origin is not None and origin == before else 0
            before = origin
            message = once.message(origin, number, row)
            if message is None:
                rejected.add(origin, f"a column of the key ({', '.join(once.key)}) is NULL")
            else:
                yield message, origin, row

    def _call(self, effect: Callable[[], object], origin: RecordId | None, rejected: RejectedRows) -> bool:
        """Whether the effect was done. It was not if the row was rejected; an error that is raised ends the batch."""
        try:
            effect()
        except (RetriableError, ConfigError):
            raise
        except HeadraceError as error:
            rejected.add(origin, str(error))
            return False
        except Exception as error:
            where = f"the row of {origin}: " if origin is not None else ""
            if self.limit is None or origin is None:
                hint = "dead_letters=… diverts such records; raise headrace.errors.BadRecord to stop instead"
                raise RetriableError(f"{self.sink}: {where}{_error_text(error)}", hint=hint) from error
            rejected.add(origin, _error_text(error))
            return False
        return True


def _error_text(error: Exception) -> str:
    """The error, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def shaper(schema: StructType) -> Callable[[Row], Row]:
    """Converts maps in a row to dicts: Arrow returns them as pairs."""
    shapes = {field.name: shape for field in schema.fields if (shape := _shape(field.dataType)) is not None}
    if not shapes:
        return _unchanged
    return lambda row: {name: shapes[name](value) if name in shapes else value for name, value in row.items()}


def _unchanged(row: Row) -> Row:
    return row


def _shape(kind: DataType) -> Callable[[Any], Any] | None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, MapType):
        inner = _shape(kind.valueType) or _unchanged
        return lambda pairs: None if pairs is None else {key: inner(value) for key, value in pairs}
    if isinstance(kind, ArrayType) and (element := _shape(kind.elementType)) is not None:
        return lambda items: None if items is None else [element(item) for item in items]
    if isinstance(kind, StructType) and any(_shape(field.dataType) for field in kind.fields):
        convert = shaper(kind)
        return lambda struct: None if struct is None else convert(struct)
    return None
