"""The output of a run: a live line on a terminal, log lines elsewhere, or JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.cli.output.terminal import print_json, say
from headrace.errors import HeadraceError
from headrace.events import Phases, ProduceDelay
from headrace.runtime.event_messages import describe_event
from headrace.text import json_text
from headrace.types import Batch, Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.events import Event, Observer
    from headrace.tools.check import Report


@contextmanager
def console_observer(pipeline: str, log_format: str) -> Iterator[Observer]:
    """The observer for `log_format`, which by default depends on whether the output is a terminal."""
    if log_format == "json":
        yield lambda event: print(json_text(record(pipeline, event)), flush=True)
    elif log_format == "auto" and sys.stdout.isatty():
        from headrace.cli.output.live_line import live_line

        with live_line(pipeline) as observer:
            yield observer
    else:
        yield lambda event: _log(pipeline, event)


def _log(pipeline: str, event: Event) -> None:
    if line := describe_event(event):
        print(f"{datetime.now():%H:%M:%S} {pipeline} {line}", flush=True)


def record(pipeline: str, event: Event) -> dict[str, Any]:
    """An event as one JSON object."""
    fields = {field.name: _plain(getattr(event, field.name)) for field in dataclasses.fields(event)}
    return {"time": datetime.now(UTC).isoformat(), "pipeline": pipeline, "event": type(event).__name__, **fields}


def _plain(value: Any) -> Any:
    match value:
        case Range():
            return [value.at.topic, value.at.partition, value.start, value.until]
        case Batch():
            return {**json.loads(value.to_json()), "offsets": len(value)}
        case BaseException():
            hint = value.hint if isinstance(value, HeadraceError) else None
            return {"type": type(value).__name__, "message": str(value), "hint": hint}
        case tuple():
            return [item if isinstance(item, str) else str(item) for item in value]
        case Phases() | ProduceDelay():
            return dataclasses.asdict(value)
        case dict():
            return {str(key): item for key, item in value.items()}
        case _:
            return value


def report(result: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    say(f"{result.pipeline}: {result.guarantee}: {result.reason}")
    say(f"  steps    {' → '.join(result.steps)}")
    say(f"  source   {result.source}")
    say(f"  sink     {result.sink}")
    say(f"  offsets  {result.offsets}")
    say(f"  columns  {', '.join(result.columns) or 'unknown'}")
    for note in result.notes:
        say(f"  note     {note}")
    for error in result.errors:
        say(f"error: {error.message}", *([f"hint: {error.hint}"] if error.hint else []), err=True)
