"""What a transform does, read off its analysed plan before anything is run."""

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


def preview(inputs: SourceReaders, transform: Callable[[Any], DataFrame]) -> DataFrame:
    """The transform's result on no rows. ConfigError for what cannot work on the direct engine."""
    empty = inputs.empty()
    with _watermarks_refused(type(next(iter(empty.values())) if isinstance(empty, dict) else empty)):
        result = apply(transform, empty)
    refuse_state(result)
    return result


def refuse_state(rows: DataFrame) -> None:
    """Raise ConfigError if the plan of `rows` needs memory across batches."""
    if stateful := _stateful_operation(rows):
        raise _needs_memory(stateful)


def _needs_memory(operation: str) -> ConfigError:
    return ConfigError(
        f"the transform uses {operation}, which needs memory across batches;"
        " the direct engine starts every batch fresh and would silently give wrong results",
        hint="leave the step out, or do it where the rows are read",
    )


@contextmanager
def _watermarks_refused(frames: type[DataFrame]) -> Iterator[None]:
    """Spark drops a watermark on a batch frame without a trace in the plan, so the call itself is watched.

    In this thread: another one may have a stream of its own in the same session.
    """
    original, here = frames.withWatermark, threading.get_ident()

    def refuse(*given: Any) -> DataFrame:
        if threading.get_ident() != here:
            return original(*given)
        raise _needs_memory("withWatermark")

    with _WATCHING:
        setattr(frames, original.__name__, refuse)
        try:
            yield
        finally:
            setattr(frames, original.__name__, original)


def apply(transform: Callable[[Any], DataFrame], rows: DataFrame | dict[str, DataFrame]) -> DataFrame:
    """Call the user's function. A plan that Spark refuses is a ConfigError; what else is raised is the user's own."""
    try:
        result = transform(rows)
    except UnknownSource as error:
        message = f"the transform does not fit the sources{_at(error)}: {error.message}"
        raise ConfigError(message, hint=error.hint) from error
    except AnalysisException as error:
        raise ConfigError(f"the transform does not fit the rows{_at(error)}: {short(error)}") from error
    if not isinstance(result, DataFrame):
        raise ConfigError(
            f"the transform returned {type(result).__name__}; a DataFrame is meant",
            hint="lambda rows: rows.where(…)",
        )
    return result


def _at(error: Exception) -> str:
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
