"""What a run looks like: a live line on a terminal, log lines elsewhere, JSON for machines."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from headrace import events
from headrace.errors import HeadraceError
from headrace.tracebacks import in_user_code, short
from headrace.types import Batch, Range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.check import Report
    from headrace.events import Event, Observer


@contextmanager
def observing(pipeline: str, log_format: str) -> Iterator[Observer]:
    """The observer that suits `log_format` and the place the output goes to."""
    if log_format == "json":
        yield lambda event: print(json.dumps(record(pipeline, event)), flush=True)
    elif log_format == "auto" and sys.stdout.isatty():
        from headrace.cli.live import live_line

        with live_line(pipeline) as observer:
            yield observer
    else:
        yield lambda event: _log(pipeline, event)


def _log(pipeline: str, event: Event) -> None:
    if line := sentence(event):
        print(f"{datetime.now():%H:%M:%S} {pipeline} {line}", flush=True)


def sentence(event: Event) -> str | None:
    """An event as people read it; None for one that another says better."""
    match event:
        case events.RunStarted(guarantee, steps):
            return f"started: {guarantee} ({', '.join(steps)})"
        case events.PartitionsFound() | events.PartitionsLeftOut() | events.Noted():
            return _found(event)
        case events.BatchStarted(batch, replay):
            return f"batch {batch.id}: found unfinished, repeating its {len(batch):,} records" if replay else None
        case events.BatchDone(batch, seconds, lag):
            rate = len(batch) / seconds if seconds else 0.0
            return f"batch {batch.id}: {len(batch):,} records in {seconds:.2f} s ({rate:,.0f}/s), lag {lag:,}"
        case events.BadRecordsDropped(batch, count):
            return f"batch {batch.id}: {count:,} bad records dropped"
        case events.RecordsQuarantined(batch, count):
            return f"batch {batch.id}: {count:,} records to the dead letters"
        case events.BatchSkipped(batch):
            return f"batch {batch.id}: given up, {len(batch):,} records may be missing (at-most-once)"
        case events.GapFound(lost, reason, resumed_at):
            return f"GAP: {lost}, {len(lost):,} records: {reason}; going on at {resumed_at:,}"
        case events.MirrorFailed(error):
            return f"the Kafka group of the mirror was not updated: {short(error)}"
        case events.CaughtUp(last_batch):
            return f"caught up after batch {last_batch}"
        case events.Retrying(error, attempt, delay):
            where = "\n" + in_user_code(error).rstrip() if not isinstance(error, HeadraceError) else ""
            hint = f" (hint: {error.hint})" if isinstance(error, HeadraceError) and error.hint else ""
            return f"retry {attempt} in {delay:.1f} s: {short(error)}{hint}{where.rstrip()}"
        case events.Stopping(reason):
            return f"stopping: {reason}; the batch in hand is finished first"
        case events.RunStopped(batches, records, error):
            ending = f"failed: {short(error)}" if error else "stopped"
            return f"{ending} after {batches:,} batches, {records:,} records"


def _found(event: events.PartitionsFound | events.PartitionsLeftOut | events.Noted) -> str:
    match event:
        case events.PartitionsFound(positions):
            shown = ", ".join(f"{at} from {offset}" for at, offset in list(positions.items())[:8])
            return f"found {len(positions)} new partitions: {shown}{' …' if len(positions) > 8 else ''}"
        case events.PartitionsLeftOut(partitions):
            shown = ", ".join(map(str, partitions[:8]))
            return f"not read, as the source names others: {shown}{' …' if len(partitions) > 8 else ''}"
        case events.Noted(text):
            return f"note: {text}"


def record(pipeline: str, event: Event) -> dict[str, Any]:
    """An event as one JSON object."""
    fields = {field.name: _plain(getattr(event, field.name)) for field in dataclasses.fields(event)}
    return {"time": datetime.now(UTC).isoformat(), "pipeline": pipeline, "event": type(event).__name__, **fields}


def _plain(value: Any) -> Any:
    match value:
        case Range():
            return [value.at.topic, value.at.partition, value.start, value.until]
        case Batch():
            return {**json.loads(value.to_json()), "records": len(value)}
        case BaseException():
            hint = value.hint if isinstance(value, HeadraceError) else None
            return {"type": type(value).__name__, "message": str(value), "hint": hint}
        case tuple():
            return [item if isinstance(item, str) else str(item) for item in value]
        case dict():
            return {str(key): item for key, item in value.items()}
        case _:
            return value


def report(checked: Report, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(checked), indent=2))
        return
    typer.echo(f"{checked.pipeline}: {checked.guarantee}: {checked.reason}")
    typer.echo(f"  steps    {' → '.join(checked.steps)}")
    typer.echo(f"  source   {checked.source}")
    typer.echo(f"  sink     {checked.sink}")
    typer.echo(f"  offsets  {checked.offsets}")
    typer.echo(f"  columns  {', '.join(checked.columns) or 'unknown'}")
    for note in checked.notes:
        typer.echo(f"  note     {note}")
