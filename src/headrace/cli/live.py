"""The live line of one pipeline: rows/s, lag, batch, last commit."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace import events
from headrace.sentences import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.events import Event, Observer

_WINDOW = 10.0
"""Seconds over which rows/s are averaged."""


@contextmanager
def live_line(pipeline: str) -> Iterator[Observer]:
    console = Console()
    line = _Line(pipeline)
    with Live(line, console=console, refresh_per_second=4, transient=False) as live:

        def observe(event: Event) -> None:
            line.take(event)
            if not isinstance(event, events.BatchDone | events.CaughtUp) and (text := sentence(event)):
                live.console.print(Text(text, style="red" if isinstance(event, events.Retrying) else "dim"))

        yield observe


class _Line:
    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._state = "starting"
        self._done: list[tuple[float, int]] = []
        self._batch = 0
        self._lag: int | None = None
        self._committed = "never"

    def take(self, event: Event) -> None:
        match event:
            case events.RunStarted():
                self._state = "running"
            case events.BatchStarted(batch):
                self._state, self._batch = "running", batch.id
            case events.BatchDone(batch, _, lag):
                self._done.append((time.monotonic(), len(batch)))
                self._lag, self._committed = lag, f"{datetime.now():%H:%M:%S}"
            case events.CaughtUp():
                self._state, self._lag = "caught up", 0
            case events.Retrying():
                self._state = "retrying"
            case events.RunStopped(error=error):
                self._state = "failed" if error else "stopped"

    def __rich__(self) -> Table:
        now = time.monotonic()
        self._done = [(at, count) for at, count in self._done if now - at <= _WINDOW]
        since = now - self._done[0][0] if self._done else 0.0
        rate = sum(count for _, count in self._done) / max(since, 1.0)
        line = Table.grid(padding=(0, 3))
        lag = "?" if self._lag is None else f"{self._lag:,}"
        line.add_row(
            Text(self._pipeline, style="bold"),
            Text(self._state, style="red" if self._state in {"retrying", "failed"} else "green"),
            f"{rate:,.0f} rows/s",
            f"lag {lag}",
            f"batch {self._batch}",
            f"last commit {self._committed}",
        )
        return line
