"""Which run is at a pipeline: its sign in the store, its heartbeats, and what the start of another makes of them."""

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

EVERY = 3.0
"""Seconds between two heartbeats."""
LAPSE = 15.0
"""Seconds without a heartbeat after which a run that cannot be looked up counts as dead."""
LAPSE_BEFORE = 120.0
"""The same of a version that signed every 30 seconds."""
SKEW = 600.0
"""Clocks of two machines differ by less: a heartbeat that is older needs no second look."""
_LOOK_EVERY = 0.5
_END_SECONDS = 5.0

Rival = Literal["stop", "take-over", "standby"]
"""What a start does when another run is at the pipeline: stop with OffsetConflict, take over, or wait for its end."""

_here: set[tuple[int, float]] = set()
"""The runs of this process, by pid and start: of its own process a pid says nothing. A run that ends leaves it."""


def pid_space() -> str:
    """Where pids of this process mean something: the boot of the kernel and the pid namespace; empty if not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def this_run() -> RunLease:
    now = time.time()
    return RunLease(socket.gethostname(), os.getpid(), started=now, beat=now, pid_space=pid_space())


def standing(run: RunLease) -> Literal["alive", "dead", "unknown"]:
    """Whether a run is alive, as far as this process can tell by its pid; unknown: only its heartbeats tell."""
    if run.pid_space and run.pid_space != pid_space():
        return "unknown"
    if not run.pid_space and run.host != socket.gethostname():
        return "unknown"
    known = run.pid_space is not None
    if known and run.pid == os.getpid():
        return "alive" if (run.pid, run.started) in _here else "dead"
    try:
        process = psutil.Process(run.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return "dead"
        if process.create_time() <= run.started + 1:
            return "alive"
    except psutil.NoSuchProcess:
        return _unseen(run) if known else "unknown"
    except psutil.AccessDenied:
        return "unknown"
    # The pid has gone to somebody else, or the clock was set.
    return "unknown"


def _unseen(run: RunLease) -> Literal["alive", "dead", "unknown"]:
    """The same of a run whose process is not to be seen: /proc may hide those of other users (hidepid)."""
    try:
        os.kill(run.pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        # Somebody else's: the run's own user, or whoever got the pid after it, and then no heartbeat comes any more.
        return "alive" if time.time() - run.beat < LAPSE else "unknown"
    except OSError:
        return "unknown"
    return "unknown"


def lapse(run: RunLease) -> float:
    """Seconds after its last heartbeat for which a run that cannot be looked up counts as alive."""
    return LAPSE_BEFORE if run.pid_space is None else LAPSE


def seconds_to_wait(run: RunLease, now: float) -> float:
    """How long a run that cannot be looked up must stay silent before it counts as dead.

    `beat` was read off the clock of another machine, so that one that seems too old is watched for a moment all the
    same: a heartbeat that comes meanwhile tells more than two clocks.
    """
    age = now - run.beat
    if age > SKEW:
        return 0.0
    return min(max(lapse(run) - age, 2 * EVERY), lapse(run))


def running(pipeline: str, run: RunLease) -> OffsetConflict:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started))
    return OffsetConflict(
        f"{pipeline} is running already: {run}, since {since}",
        hint=f"stop that run first (kill {run.pid} on {run.host}); or headrace run … --take-over, or --standby",
    )


def rival_policy(*, take_over: bool, standby: bool) -> Rival:
    """What the two options of a start mean together."""
    if take_over and standby:
        raise ConfigError("take_over and standby exclude each other", hint="--take-over, or --standby")
    return "take-over" if take_over else "standby" if standby else "stop"


def refuse_second(pipeline: str, store: OffsetStore) -> None:
    """OffsetConflict if a run of this pipeline is known to be alive: asked before anything that takes long.

    Whatever else stands in the way, the run itself meets later and says. Nothing is created: a run also says that its
    files are not where the last one had them.
    """
    try:
        with store:
            found = store.lease() if store.open_for_reading(pipeline) is None else None
    except OffsetConflict:
        raise
    except Exception:
        return
    if found is not None and standing(found) == "alive":
        raise running(pipeline, found)


class RunPresence:
    """The sign of one run, from its start to its end. `wait` sleeps for some seconds; True means to stop."""

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
        self._over: RunLease | None = None
        self.signed = False
        """Whether the sign is in the store, as far as this run knows."""
        self.waits = rival == "standby"
        """Whether it waits for the end of another run, also where that one lets nobody open the store."""
        self._beating: _Beating | None = None
        self._beat = time.monotonic()

    def admit(self, store: OffsetStore) -> bool:
        """Whether this run may begin. OffsetConflict at once if another one is alive; False if a stop came first.

        Where the other run cannot be looked up, from another machine or container, its heartbeats are watched until
        they have lapsed. Nothing in the store is changed.
        """
        watched: RunLease | None = None
        told: RunLease | None = None
        since = patience = 0.0
        while True:
            found = store.lease()
            if found is None or self.run.is_same_run(found) or self._may_replace(found):
                self._over = found
                return True
            beating = watched is not None and watched.is_same_run(found) and watched.beat != found.beat
            state = "alive" if beating else standing(found)
            if state == "alive" and self._rival != "standby":
                raise running(self._pipeline, found)
            if beating or watched is None or not watched.is_same_run(found):
                watched, since, patience = found, time.monotonic(), seconds_to_wait(found, time.time())
            if state == "dead" or (state == "unknown" and time.monotonic() - since >= patience):
                self._over = found
                return True
            if told is None or not told.is_same_run(found):
                told = found
                self._say(found, state, patience)
            if self._wait(_LOOK_EVERY):
                return False

    def _may_replace(self, found: RunLease) -> bool:
        if self.signed:
            raise OffsetConflict(f"{found} has taken over {self._pipeline}", hint="let one of them finish, or stop it")
        if self._rival == "take-over" and standing(found) != "dead":
            self._observe(events.Noted(f"taking over from {found}: it stops at its next batch"))
        return self._rival == "take-over"

    def _say(self, found: RunLease, state: str, patience: float) -> None:
        if state == "alive":
            self._observe(events.Noted(f"standby: {found} is running; this run begins when that one has ended"))
        else:
            self._observe(
                events.Noted(
                    f"{found} may still be running and cannot be looked up from here: waiting up to {patience:.0f} s"
                    " for a heartbeat, then taking over"
                )
            )

    def acquire(self, store: OffsetStore) -> None:
        """Sign as the run of this pipeline, unless somebody else has signed since `admit`; heartbeats begin."""

        def allow(found: RunLease | None) -> None:
            ours = (
                found is None
                or self.run.is_same_run(found)
                or (self._over is not None and self._over.is_same_run(found))
            )
            if found is not None and not ours:
                raise running(self._pipeline, found)

        _here.add((self.run.pid, self.run.started))
        self.run = replace(self.run, beat=time.time())
        store.set_lease(self.run, allow)
        self.signed, self.waits = True, False
        if self._beating is None and (handle := store.heartbeat_handle()) is not None:
            self._beating = _Beating(handle, self._pipeline, self.run, self._observe)

    def between_batches(self, store: OffsetStore) -> None:
        """Send a heartbeat if one is due and no thread does."""
        if self._beating is None and time.monotonic() - self._beat >= EVERY:
            self._beat = time.monotonic()
            store.heartbeat(replace(self.run, beat=time.time()))

    def release(self, store: OffsetStore) -> None:
        """Say that this run has ended, if it is this run that signed last."""
        self.signed = False
        with suppress(HeadraceError):  # a sign that cannot be taken back lapses
            if self.run.is_same_run(store.read()[0].run):
                store.set_lease(None)

    def close(self) -> None:
        if self._beating is not None:
            self._beating.end()
            self._beating = None
        _here.discard((self.run.pid, self.run.started))


class _Beating:
    """A thread that sends heartbeats over a connection of its own: stores are not made for two threads."""

    def __init__(self, handle: Heartbeats, pipeline: str, run: RunLease, observe: events.Observer) -> None:
        self._handle = handle
        self._pipeline = pipeline
        self._run = run
        self._observe = observe
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beats, name="headrace-heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(_END_SECONDS)

    def _beats(self) -> None:
        opened = told = False
        # Connects only when the first one is due: a run that is over by then needs none.
        while not self._ended.wait(EVERY):
            try:
                if not opened:
                    self._handle.open(self._pipeline)
                    opened = True
                if not self._handle.heartbeat(replace(self._run, beat=time.time())):
                    break  # another run has signed; this one learns it at its next batch
                told = False
            except Exception as error:  # whatever a driver raises: the run itself goes on
                self._handle.close()
                opened = False
                if not told and not self._ended.is_set():
                    told = True
                    self._observe(events.Noted(f"the heartbeat could not be sent, and is tried again: {error}"))
        self._handle.close()
