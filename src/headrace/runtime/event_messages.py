"""Describes events as text, for the terminal and for Python's logging."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace import events
from headrace.errors import HeadraceError
from headrace.support.tracebacks import in_user_code, short
from headrace.text import counted, printable_lines

if TYPE_CHECKING:
    from headrace.events import Event

_LOG = logging.getLogger("headrace")
_LEVELS = {
    events.Retrying: logging.WARNING,
    events.BatchTimedOut: logging.WARNING,
    events.GapFound: logging.WARNING,
    events.BadRecordsDropped: logging.WARNING,
    events.BatchSkipped: logging.WARNING,
    events.MirrorFailed: logging.WARNING,
    events.Noted: logging.INFO,
}
"""The events that are logged: those that report a wait, or records that are left out."""


def log(event: Event) -> None:
    """The default observer: logs to the logger `headrace`."""
    level = _LEVELS.get(type(event))
    if level is not None and _LOG.isEnabledFor(level):
        _LOG.log(level, "%s", describe_event(event))


def describe_event(event: Event) -> str | None:
    """An event as text without control characters; None if another event reports it better."""
    text = _sentence(event)
    return None if text is None else printable_lines(text)


def _sentence(event: Event) -> str | None:
    match event:
        case events.RunStarted(guarantee, steps):
            return f"started: {guarantee} ({', '.join(steps)})"
        case events.PartitionsFound() | events.PartitionsLeftOut() | events.Noted():
            return _partitions_or_note(event)
        case events.BatchStarted(batch, replay):
            return f"batch {batch.id}: was pending, repeating its {counted(len(batch), 'offset')}" if replay else None
        case events.BatchDone():
            return _done(event)
        case events.BadRecordsDropped(batch, count):
            return f"batch {batch.id}: {counted(count, 'bad record')} dropped"
        case events.RecordsQuarantined(batch, count, left_out):
            without_bytes = f", {left_out:,} of them without their bytes (max_bytes)" if left_out else ""
            return f"batch {batch.id}: {counted(count, 'record')} to the dead letters{without_bytes}"
        case events.BatchSkipped(batch):
            return f"batch {batch.id}: abandoned, {counted(len(batch), 'offset')} may be missing (at-most-once)"
        case events.GapFound(lost, reason, resumed_at):
            return f"GAP: {lost}, {counted(len(lost), 'offset')}: {reason}; continuing at {resumed_at:,}"
        case events.MirrorFailed(error):
            return f"the Kafka group of the mirror was not updated: {short(error)}"
        case events.CaughtUp(last_batch):
            return f"caught up after batch {last_batch}"
        case events.Retrying(error, attempt, delay):
            frames = "\n" + in_user_code(error).rstrip() if not isinstance(error, HeadraceError) else ""
            hint = f" (hint: {error.hint})" if isinstance(error, HeadraceError) and error.hint else ""
            return f"retry {attempt} in {delay:.1f} s: {short(error)}{hint}{frames.rstrip()}"
        case events.BatchTimedOut(batch, seconds, count):
            return f"batch {batch.id}: timed out after {seconds:g} s, its jobs were cancelled (timeouts: {count:,})"
        case events.Stopping(reason):
            return f"stopping: {reason}; the batch in flight is finished first"
        case events.RunStopped(batches, records, error, rows):
            # Without the reason: the error itself reports it.
            done = f"{counted(batches, 'batch')}, {counted(records, 'record')}{_written(rows)}"
            return f"{'failed' if error else 'stopped'} after {done}"


def _done(event: events.BatchDone) -> str:
    batch, records, seconds = event.batch, event.records, event.seconds
    read = counted(len(batch), "offset") if records is None else counted(records, "record")
    rate = (len(batch) if records is None else records) / seconds if seconds else 0.0
    parts = [
        f"batch {batch.id}: {read}{_written(event.rows)} in {seconds:.2f} s ({rate:,.0f}/s), lag {event.lag:,}",
        *(f"{phase} {took:.2f} s" for phase, took in (asdict(event.phases).items() if event.phases else ())),
    ]
    if event.scheduling_delay is not None:
        parts.append(f"scheduling delay {event.scheduling_delay:.2f} s")
    if (delay := event.produce_delay) is not None:
        parts.append(f"produce delay p50 {delay.p50:,.2f} s, p99 {delay.p99:,.2f} s, max {delay.max:,.2f} s")
    return ", ".join(parts)


def _written(rows: int | None) -> str:
    return "" if rows is None else f", {counted(rows, 'row')} written"


def _partitions_or_note(event: events.PartitionsFound | events.PartitionsLeftOut | events.Noted) -> str:
    match event:
        case events.PartitionsFound(positions):
            shown = ", ".join(f"{at} from {offset}" for at, offset in list(positions.items())[:8])
            return f"found {counted(len(positions), 'new partition')}: {shown}{' …' if len(positions) > 8 else ''}"
        case events.PartitionsLeftOut(partitions):
            shown = ", ".join(map(str, partitions[:8]))
            return f"not read, as the source names others: {shown}{' …' if len(partitions) > 8 else ''}"
        case events.Noted(text):
            return f"note: {text}"
