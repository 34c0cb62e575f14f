"""The lease of a run in the store, its heartbeats, and what a second start does."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from headrace import events
from headrace.core.state import RunLease
from headrace.errors import ConfigError, HeadraceError, OffsetConflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.offset_store import Heartbeats, OffsetStore

INTERVAL = 3.0
"""Seconds between two heartbeats."""
LEASE_TIMEOUT = 15.0
"""Seconds without a heartbeat after which a run whose process cannot be checked counts as dead."""
OLD_LEASE_TIMEOUT = 120.0
"""The same for an older version, which sent heartbeats every 30 seconds."""
MAX_CLOCK_SKEW = 600.0
"""Seconds that the clocks of two machines may differ. If a heartbeat is older, a start does not wait for a new one."""
_POLL_INTERVAL = 0.5
_JOIN_SECONDS = 5.0

Rival = Literal["stop", "take-over", "standby"]
"""What a start does if another run holds the lease: stop with OffsetConflict, take over, or wait for its end."""

_local_runs: set[tuple[int, float]] = set()
"""The runs of this process, by pid and start time: the pid alone does not identify the live ones."""


def pid_space() -> str:
    """The scope of pids of this process: the boot id of the kernel and the pid namespace; empty if not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def this_run() -> RunLease:
    now = time.time()
    return RunLease(socket.gethostname(), os.getpid(), started=now, beat=now, pid_space=pid_space())


def liveness(run: RunLease) -> Literal["alive", "dead", "unknown"]:
    """Whether a run is alive, judged by its pid. "unknown": this process cannot check it, and its heartbeats decide."""
    if run.pid_space and run.pid_space != pid_space():
        return "unknown"
    if not run.pid_space and run.host != socket.gethostname():
        return "unknown"
    known = run.pid_space is not None
    if known and run.pid == os.getpid():
        return "alive" if (run.pid, run.started) in _local_runs else "dead"
    try:
        process = psutil.Process(run.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return "dead"
        if process.create_time() <= run.started + 1:
            return "alive"
    except psutil.NoSuchProcess:
        return _hidden_liveness(run) if known else "unknown"
    except psutil.AccessDenied:
        return "unknown"
    # Another process has the pid now, or the clock was set.
    return "unknown"


def _hidden_liveness(run: RunLease) -> Literal["alive", "dead", "unknown"]:
    """The same for a process that is not visible: /proc may hide those of other users (hidepid)."""
    try:
        os.kill(run.pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        # A process of another user: the run itself, or one that reuses its pid, but then the heartbeats have stopped.
        return "alive" if time.time() - run.beat < LEASE_TIMEOUT else "unknown"
    except OSError:
        return "unknown"
    return "unknown"


def lease_timeout(run: RunLease) -> float:
    """Seconds after its last heartbeat for which a run whose process cannot be checked counts as alive."""
    return OLD_LEASE_TIMEOUT if run.pid_space is None else LEASE_TIMEOUT


def seconds_to_wait(run: RunLease, now: float) -> float:
    """Seconds without a heartbeat after which a run whose process cannot be checked counts as dead.

    `beat` is from the clock of another machine. So a start still waits a moment for a new heartbeat if the last one
    seems too old: a new heartbeat is better evidence than a comparison of two clocks.
    """
    age = now - run.beat
    if age > MAX_CLOCK_SKEW:
        return 0.0
    return min(max(lease_timeout(run) - age, 2 * INTERVAL), lease_timeout(run))


def running(pipeline: str, run: RunLease) -> OffsetConflict:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started))
    return OffsetConflict(
        f"{pipeline} is running already: {run}, since {since}",
        hint=f"stop that run first (kill {run.pid} on {run.host}); or headrace run … --take-over, or --standby",
    )


def rival_policy(*, take_over: bool, standby: bool) -> Rival:
    """The policy for the two options of a start."""
    if take_over and standby:
        raise ConfigError("take_over and standby exclude each other", hint="--take-over, or --standby")
    return "take-over" if take_over else "standby" if standby else "stop"


def refuse_second(pipeline: str, store: OffsetStore) -> None:
    """OffsetConflict if a run of this pipeline is known to be alive; checked before any slow step.

    Other errors are ignored here, because the run itself will report them. Creates nothing, because a run also reports
    missing files that the last run had at other paths.
    """
    try:
        with store:
            lease = store.lease() if store.open_for_reading(pipeline) is None else None
    except OffsetConflict:
        raise
    except Exception:
        return
    if lease is not None and liveness(lease) == "alive":
        raise running(pipeline, lease)


class RunPresence:
    """The lease of one run, from its start to its end. `wait` sleeps for some seconds and returns True to stop."""

    def __init__(
        self,
        pipeline: str,
        observe: events.Observer,
        rival: Rival = "stop",
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.run = this_run()
        self._pipeline = pipeline
        self._observe = observe
        self._rival = rival
        self._wait = wait or threading.Event().wait
        self._replaced: RunLease | None = None
        """The lease that this run may replace."""
        self.holds_lease = False
        """Whether the lease is in the store, as far as this run knows."""
        self.waits = rival == "standby"
        """Whether it waits for another run to end, also if that run has locked the store."""
        self._thread: HeartbeatThread | None = None
        self._last_beat = time.monotonic()

    def admit(self, store: OffsetStore) -> bool:
        """Whether this run may begin. OffsetConflict at once if another one is alive; False if it is stopped first.

        If the process of the other run cannot be checked, from another machine or container, its heartbeats are watched
        until the lease has expired. Nothing in the store is changed.
        """
        watched: RunLease | None = None
        reported: RunLease | None = None
        since = timeout = 0.0
        while True:
            lease = store.lease()
            if lease is None or self.run.is_same_run(lease) or self._may_replace(lease):
                self._replaced = lease
                return True
            beating = watched is not None and watched.is_same_run(lease) and watched.beat != lease.beat
            state = "alive" if beating else liveness(lease)
            if state == "alive" and self._rival != "standby":
                raise running(self._pipeline, lease)
            if beating or watched is None or not watched.is_same_run(lease):
                watched, since, timeout = lease, time.monotonic(), seconds_to_wait(lease, time.time())
            if state == "dead" or (state == "unknown" and time.monotonic() - since >= timeout):
                self._replaced = lease
                return True
            if reported is None or not reported.is_same_run(lease):
                reported = lease
                self._report(lease, state, timeout)
            if self._wait(_POLL_INTERVAL):
                return False

    def _may_replace(self, lease: RunLease) -> bool:
        if self.holds_lease:
            raise OffsetConflict(f"{lease} has taken over {self._pipeline}", hint="let one of them finish, or stop it")
        if self._rival == "take-over" and liveness(lease) != "dead":
            self._observe(events.Noted(f"taking over from {lease}: it stops at its next batch"))
        return self._rival == "take-over"

    def _report(self, lease: RunLease, state: str, timeout: float) -> None:
        if state == "alive":
            self._observe(events.Noted(f"standby: {lease} is running; this run begins when that one has ended"))
        else:
            self._observe(
                events.Noted(
                    f"{lease} may still be running, and its process cannot be checked from here: waiting up to"
                    f" {timeout:.0f} s for a heartbeat, then taking over"
                )
            )

    def acquire(self, store: OffsetStore) -> None:
        """Take the lease, unless another run has taken it since `admit`, and start the heartbeats."""

        def allow(lease: RunLease | None) -> None:
            allowed = (
                lease is None
                or self.run.is_same_run(lease)
                or (self._replaced is not None and self._replaced.is_same_run(lease))
            )
            if lease is not None and not allowed:
                raise running(self._pipeline, lease)

        _local_runs.add((self.run.pid, self.run.started))
        self.run = replace(self.run, beat=time.time())
        store.set_lease(self.run, allow)
        self.holds_lease, self.waits = True, False
        if self._thread is None and (handle := store.heartbeat_handle()) is not None:
            self._thread = HeartbeatThread(handle, self._pipeline, self.run, self._observe)

    def between_batches(self, store: OffsetStore) -> None:
        """Send a heartbeat if one is due and no thread does."""
        if self._thread is None and time.monotonic() - self._last_beat >= INTERVAL:
            self._last_beat = time.monotonic()
            store.heartbeat(replace(self.run, beat=time.time()))

    def release(self, store: OffsetStore) -> None:
        """Remove the lease, if it is that of this run."""
        self.holds_lease = False
        with suppress(HeadraceError):  # a lease that cannot be removed expires
            if self.run.is_same_run(store.read()[0].run):
                store.set_lease(None)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.end()
            self._thread = None
        _local_runs.discard((self.run.pid, self.run.started))


class HeartbeatThread:
    """A thread that sends heartbeats over a connection of its own: stores are not thread-safe."""

    def __init__(self, handle: Heartbeats, pipeline: str, run: RunLease, observe: events.Observer) -> None:
        self._handle = handle
        self._pipeline = pipeline
        self._run = run
        self._observe = observe
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, name="headrace-heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(_JOIN_SECONDS)

    def _send(self) -> None:
        opened = reported = False
        # Connect only when the first heartbeat is due: a shorter run needs no connection.
        while not self._ended.wait(INTERVAL):
            try:
                if not opened:
                    self._handle.open(self._pipeline)
                    opened = True
                if not self._handle.heartbeat(replace(self._run, beat=time.time())):
                    break  # another run has the lease; this run detects it at its next batch
                reported = False
            except Exception as error:  # any error of a driver: the run itself continues
                self._handle.close()
                opened = False
                if not reported and not self._ended.is_set():
                    reported = True
                    self._observe(events.Noted(f"cannot send the heartbeat; trying again: {error}"))
        self._handle.close()
