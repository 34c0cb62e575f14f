"""The live line of one pipeline: rate, totals, lag, the batch in flight, last commit."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from headrace import events
from headrace.runtime.event_messages import describe_event
from headrace.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import ConsoleOptions

    from headrace.events import Event, Observer

_WINDOW = 10.0
"""Seconds for which a finished batch counts for the rate; the last one counts while the next is in flight."""
_SEPARATOR = "   "


@contextmanager
def live_line(pipeline: str) -> Iterator[Observer]:
    console = Console()
    line = _Line(pipeline)
    with Live(line, console=console, refresh_per_second=4, transient=False) as live:

        def observe(event: Event) -> None:
            line.take(event)
            if not isinstance(event, events.BatchDone | events.CaughtUp) and (text := describe_event(event)):
                live.console.print(Text(text, style="red" if isinstance(event, events.Retrying) else "dim"))

        yield observe


class _Line:
    def __init__(self, pipeline: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._state = "starting"
        self._since = clock()
        self._done: list[tuple[float, events.BatchDone]] = []
        self._records = 0
        self._rows: int | None = 0
        self._batch: tuple[int, float] | None = None
        self._lag: int | None = None
        self._delay: events.ProduceDelay | None = None
        self._committed = "never"

    def take(self, event: Event) -> None:
        now = self._clock()
        match event:
            case events.RunStarted():
                self._enter("running")
            case events.BatchStarted(batch):
                self._enter("running")
                self._batch = (batch.id, now)
            case events.BatchDone(lag=lag, rows=rows):
                self._done.append((now, event))
                self._records += _offset_count(event)
                self._rows = None if rows is None or self._rows is None else self._rows + rows
                self._batch, self._lag, self._committed = None, lag, f"{datetime.now():%H:%M:%S}"
                self._delay = event.produce_delay or self._delay
            case events.CaughtUp():
                self._enter("caught up")
                self._lag = 0
            case events.Retrying():
                self._enter("retrying")
                self._batch = None
            case events.Stopping():
                self._enter("stopping")
            case events.RunStopped(error=error):
                self._enter("failed" if error else "stopped")
                self._batch = None

    def _enter(self, state: str) -> None:
        if state != self._state:
            self._state, self._since = state, self._clock()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Wrap a line that is too long between its parts, never inside one."""
        line, *others = self._parts()
        for part in others:
            if line.cell_len + len(_SEPARATOR) + part.cell_len > options.max_width:
                yield line
                line = part
            else:
                line = Text(_SEPARATOR).join([line, part])
        yield line

    def _parts(self) -> list[Text]:
        now = self._clock()
        recent = [done for done in self._done if now - done[0] <= _WINDOW]
        self._done = recent or (self._done[-1:] if self._batch else [])
        done = [event for _, event in self._done]
        seconds = sum(event.seconds for event in done)
        rate = sum(map(_offset_count, done)) / seconds if seconds else 0.0
        waiting = self._state in {"starting", "retrying", "stopping"}
        state = f"{self._state} {now - self._since:.0f} s" if waiting else self._state
        cells = [
            Text(printable(self._pipeline), style="bold"),
            Text(state, style="red" if self._state in {"retrying", "failed"} else "green"),
        ]
        if self._state != "starting":
            cells += [Text(f"{rate:,.0f} records/s"), Text(counted(self._records, "record"))]
            cells += [] if self._rows in (None, self._records) else [Text(counted(self._rows or 0, "row"))]
            cells += [Text(f"lag {'?' if self._lag is None else f'{self._lag:,}'}")]
            cells += (
                [Text(f"delay p50 {_short(self._delay.p50)}, p99 {_short(self._delay.p99)}")] if self._delay else []
            )
            cells += [Text(shares)] if (shares := _shares([event.phases for event in done if event.phases])) else []
            cells += [Text(f"batch {self._batch[0]} for {now - self._batch[1]:.0f} s")] if self._batch else []
            cells += [Text(f"last commit {self._committed}")]
        return cells


def _offset_count(event: events.BatchDone) -> int:
    return len(event.batch) if event.records is None else event.records


def _short(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def _shares(phases: list[events.Phases]) -> str:
    """The share of the time that each phase took, largest first, without those below one percent."""
    seconds = {name: sum(getattr(batch, name) for batch in phases) for name in ("metadata", "plan", "write", "commit")}
    total = sum(seconds.values())
    parts = sorted(
        ((part / total, name) for name, part in seconds.items() if total and part / total >= 0.01), reverse=True
    )
    return ", ".join(f"{name} {part:.0%}" for part, name in parts)
