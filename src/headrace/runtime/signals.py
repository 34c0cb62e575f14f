"""Handles SIGTERM and Ctrl-C for loops that stop gracefully."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

WAKE_SECONDS = 1.0
"""How often a waiting main thread must wake up: only it runs the handlers of signals, and a signal that the kernel
delivers to another thread does not wake it."""
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_callbacks: list[Callable[[str], object]] = []
"""The callbacks of nested loops, outermost first: a signal calls all of them."""


@contextmanager
def on_stop_signal(
    callback: Callable[[str], object],
    second: Callable[[int, FrameType | None], object] | signal.Handlers | None = None,
) -> Iterator[None]:
    """Call `callback` with the name of the first signal. Later signals get the handler `second`, or the previous one.

    Does nothing outside of the main thread, because only that can handle signals: the host process must stop the run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def first(number: int, frame: FrameType | None) -> None:
        for handled, handler in before.items():
            signal.signal(handled, handler if second is None else second)
        for call in _callbacks:
            call(signal.Signals(number).name)

    if not _callbacks:
        before = {number: signal.signal(number, first) for number in _STOPPING}
    _callbacks.append(callback)
    try:
        yield
    finally:
        _callbacks.remove(callback)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def preserve_ctrl_c() -> Iterator[None]:
    """Restore the handler of Ctrl-C after the block: a new Spark session installs one that cancels all jobs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:  # None: it was not set from Python, which cannot restore it
            signal.signal(signal.SIGINT, before)


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """A function that returns whether to stop: True after the first signal. A second signal ends the process."""
    requested = threading.Event()
    with on_stop_signal(lambda _: requested.set(), second=signal.SIG_DFL):
        yield requested.is_set
