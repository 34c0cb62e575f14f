"""Runs the transform on no rows, and rejects plans that the direct engine cannot run."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from headrace.core.transforms import UnknownSource
from headrace.errors import ConfigError
from headrace.support.tracebacks import short, user_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.engine.source_readers import SourceReaders

_WATCHING = threading.Lock()
_STATEFUL = {
    "EventTimeWatermark": "withWatermark",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "TimeWindow": "window over time",
    "SessionWindow": "session_window",
    "PreciseTimestampConversion": "window over time",
}


def dry_run(inputs: SourceReaders, transform: Callable[[Any], DataFrame]) -> DataFrame:
    """The transform's result for a batch without records. ConfigError if the direct engine cannot run it."""
    empty = inputs.empty_argument()
    with _watermarks_rejected(type(next(iter(empty.values())) if isinstance(empty, dict) else empty)):
        result = apply(transform, empty)
    reject_state(result)
    return result


def reject_state(rows: DataFrame) -> None:
    """ConfigError if the plan of `rows` needs state across batches."""
    if stateful := _stateful_operation(rows):
        raise _needs_state(stateful)


def _needs_state(operation: str) -> ConfigError:
    return ConfigError(
        f"the transform uses {operation}, which needs state across batches;"
        " the direct engine keeps none and would silently give wrong results",
        hint="remove this step from the transform, and do it where the rows are read",
    )


@contextmanager
def _watermarks_rejected(frames: type[DataFrame]) -> Iterator[None]:
    """Reject calls of withWatermark: on a batch frame Spark drops it, so the plan does not show it.

    Only calls of this thread: another one may run a stream in the same session.
    """
    original, here = frames.withWatermark, threading.get_ident()

    def reject(*arguments: Any) -> DataFrame:
        if threading.get_ident() != here:
            return original(*arguments)
        raise _needs_state("withWatermark")

    with _WATCHING:
        setattr(frames, original.__name__, reject)
        try:
            yield
        finally:
            setattr(frames, original.__name__, original)


def apply(transform: Callable[[Any], DataFrame], rows: DataFrame | dict[str, DataFrame]) -> DataFrame:
    """Call the user's function. ConfigError for a plan that Spark rejects; other exceptions are the user's own."""
    try:
        result = transform(rows)
    except UnknownSource as error:
        message = f"the transform does not fit the sources{_location(error)}: {error.message}"
        raise ConfigError(message, hint=error.hint) from error
    except AnalysisException as error:
        raise ConfigError(f"the transform does not fit the rows{_location(error)}: {short(error)}") from error
    if not isinstance(result, DataFrame):
        raise ConfigError(
            f"the transform returned {type(result).__name__}, expected a DataFrame",
            hint="lambda rows: rows.where(…)",
        )
    return result


def _location(error: Exception) -> str:
    return f" at {line}" if (line := user_line(error)) else ""


def _stateful_operation(rows: DataFrame) -> str | None:
    plan: Any = rows._jdf.queryExecution().analyzed()
    for name in _class_names(json.loads(plan.toJSON())):
        if name in _STATEFUL:
            return _STATEFUL[name]
        if name.startswith(("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState")):
            return name
    return None


def _class_names(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _class_names(item)
    elif isinstance(node, dict):
        if isinstance(name := node.get("class"), str):
            yield name.rpartition(".")[2]
        for item in node.values():
            yield from _class_names(item)
