"""The handle of a run: stop it, wait for its end, read its status, from any thread."""

from __future__ import annotations

import atexit
import contextvars
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, Self, overload

from headrace import events
from headrace.errors import HeadraceError
from headrace.runtime.runner import Stop, Summary
from headrace.runtime.signals import WAKE_SECONDS
from headrace.support.validation import check_duration

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType

    from headrace.types import Batch

DRAIN_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""Seconds that a batch has to end after its Spark jobs were cancelled at the deadline."""

State = Literal["starting", "running", "stopping", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run at one moment.

    `since` is when it entered its `state`. `batch` is the one in flight. `batches`, `records` and `rows` are totals of
    this run; `rows` is None if those of a batch could not be counted. `error` is the last error: the run is retrying
    after it, or has ended with it. It is None again once a batch is done or nothing is left to read.
    """

    state: State
    since: datetime
    batch: Batch | None = None
    batches: int = 0
    records: int = 0
    rows: int | None = 0
    error: BaseException | None = None

    def after(self, event: events.Event, now: datetime) -> RunStatus:
        match event:
            case events.RunStarted() if self.state == "starting":
                return replace(self, state="running", since=now)
            case events.Stopping():
                return replace(self, state="stopping", since=now)
            case events.BatchStarted(batch):
                return replace(self, batch=batch)
            case events.BatchDone(batch, records=records, rows=rows):
                return replace(
                    self,
                    batch=None,
                    batches=self.batches + 1,
                    records=self.records + (len(batch) if records is None else records),
                    rows=None if rows is None or self.rows is None else self.rows + rows,
                    error=None,
                )
            case events.BatchSkipped() | events.CaughtUp():
                return replace(self, batch=None, error=None)
            case events.Retrying(error):
                return replace(self, batch=None, error=error)
        return self


class Run:
    """A run of a pipeline in a thread of its own, created by `pipeline.start()`. Its methods are thread-safe.

    At the end of a `with` block it stops the run and waits for its end, as it does at the end of the process.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Stop, events.Observer], Summary],
        *,
        cancel: Callable[[threading.Event], None],
        observer: events.Observer = events.ignore,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`work` executes the run; `cancel` cancels its Spark jobs until an event is set; `ended` is called last."""
        self.name = name
        self._cancel = cancel
        self._observer = observer
        self._event_lock = threading.RLock()
        self._stop = Stop()
        self._lock = threading.RLock()
        self._deadline: float | None = None
        """When the batch in flight is cancelled after a stop."""
        self._watches: list[threading.Thread] = []
        self._drain_error: HeadraceError | None = None
        self._status = RunStatus("starting", datetime.now(UTC))
        self._summary: Summary | None = None
        self._ended = threading.Event()
        # Use the context variables of the caller, for decimals, traces and logs.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._run, work, ended), name=f"headrace-run-{name}", daemon=True
        )
        atexit.register(self._stop_at_exit)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self._status.state} since {self._status.since:%Y-%m-%d %H:%M:%S} UTC>"

    @property
    def status(self) -> RunStatus:
        return self._status

    def stop(self, *, drain: bool | str | float | timedelta = True, reason: str = "stop()") -> None:
        """Request a stop and return at once; `wait()` waits for the end.

        The batch in flight has `drain` to finish: 60 seconds, or a duration such as "10s". After that its Spark jobs
        are cancelled, the next run repeats it, and `wait()` raises HeadraceError. `drain=False` cancels them at once,
        which is not an error.
        """
        allowed = _drain_seconds(drain)
        deadline = time.monotonic() + allowed
        with self._lock:
            if not self._ended.is_set() and (self._deadline is None or deadline < self._deadline):
                self._deadline = deadline
                error = None if drain is False else drain_timeout_error(allowed)
                watch = threading.Thread(
                    target=self._cancel_after, args=(allowed, error), name="headrace-stop", daemon=True
                )
                self._watches.append(watch)
                watch.start()
        self._stop.request(reason, self._observe)

    @overload
    def wait(self) -> Summary: ...

    @overload
    def wait(self, timeout: float) -> Summary | None: ...

    def wait(self, timeout: float | None = None) -> Summary | None:
        """Wait for the end. None if the run has not ended after `timeout` seconds. Raises the error that ended the run.

        After it has returned a summary or raised, only this object and the Spark session are left of the run.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("run.wait() in the run's own thread would wait for itself; run.stop() returns at once")
        # Not join(): if a signal handler raises in it, Python 3.11 considers the thread ended.
        while not self._ended.wait(WAKE_SECONDS if timeout is None else timeout):
            if timeout is not None:
                return None
        for thread in (self._thread, *self._watches):
            thread.join()
        if self._status.state == "failed" and self._status.error is not None:
            raise self._status.error
        return self._summary

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        try:
            self.wait()
        except Exception:
            if error is None:
                raise

    def _run(self, work: Callable[[Stop, events.Observer], Summary], ended: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            self._summary = work(self._stop, self._observe)
        except BaseException as failure:
            if self._stop.cancelled.is_set() and isinstance(failure, Exception):
                self._summary = Summary(0, 0)  # before its first batch
            else:
                error = failure
        if self._stop.abandoned:
            error = self._drain_error
        atexit.unregister(self._stop_at_exit)
        with self._event_lock:
            status = replace(self._status, state="failed" if error else "stopped", since=datetime.now(UTC), batch=None)
            self._status = replace(status, error=error) if error else status
            self._ended.set()
        ended()

    def _observe(self, event: events.Event) -> None:
        """Handle one event at a time, also if a stop or a heartbeat reports one from another thread."""
        with self._event_lock:
            if not self._ended.is_set():
                self._status = self._status.after(event, datetime.now(UTC))
                self._observer(event)

    def _cancel_after(self, allowed: float, error: HeadraceError | None) -> None:
        if not self._ended.wait(allowed):
            with self._lock:
                if not self._stop.cancelled.is_set():
                    self._drain_error = error
                self._stop.cancelled.set()
            self._cancel(self._ended)

    def _stop_at_exit(self) -> None:
        """Stop the run at the end of the process, before pyspark ends the JVM. No new thread can be started then."""
        self._stop.request("the process ends", self._observe)
        self._ended.wait(DRAIN_SECONDS)


def drain_timeout_error(allowed: float) -> HeadraceError:
    return HeadraceError(
        f"the batch in flight was not finished {allowed:.0f} s after the stop; it is repeated at the next start",
        hint="--drain SECONDS, or run.stop(drain=…), gives it more time",
    )


def _drain_seconds(drain: bool | str | float | timedelta) -> float:
    if drain is True:
        return DRAIN_SECONDS
    if not drain:
        return 0.0
    return check_duration("drain", drain, hint='drain="30s", or drain=False to cancel the batch')
