"""SIGTERM and Ctrl-C, for loops that end in good order."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_hearing: list[Callable[[str], object]] = []
"""Of loops within loops, the outermost first: a signal is for all of them."""


@contextmanager
def on_stop_signal(
    hear: Callable[[str], object], then: Callable[[int, FrameType | None], object] | signal.Handlers | None = None
) -> Iterator[None]:
    """Call `hear` with the name of the first of them; the next ones meet `then`, or whatever they met before.

    Does nothing outside the main thread, which alone hears signals: the host process stops us its own way.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def first(number: int, frame: FrameType | None) -> None:
        for again, handler in before.items():
            signal.signal(again, handler if then is None else then)
        for each in _hearing:
            each(signal.Signals(number).name)

    if not _hearing:
        before = {number: signal.signal(number, first) for number in _STOPPING}
    _hearing.append(hear)
    try:
        yield
    finally:
        _hearing.remove(hear)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ctrl_c_kept() -> Iterator[None]:
    """Within, a session of Spark may be made: its own handler, which cancels all jobs at Ctrl-C, does not stay."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None:  # which Python could not put back
            signal.signal(signal.SIGINT, before)


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop. The first signal asks for that; a second one leaves at once."""
    asked = threading.Event()
    with on_stop_signal(lambda _: asked.set(), then=signal.SIG_DFL):
        yield asked.is_set
