"""Ctrl-C and SIGTERM, for verbs that go on until they are told to stop."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop. The first signal asks for that; a second one leaves at once."""
    asked = False
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    for number in _SIGNALS:
        signal.signal(number, stop)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
