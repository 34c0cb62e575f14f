"""When verbs end that would go on: by themselves, or when Ctrl-C or SIGTERM tells them to."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.signals import heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Until(StrEnum):
    CAUGHT_UP = "caught-up"


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """A function that says whether to stop. The first signal asks for that; a second one leaves at once."""
    asked = threading.Event()
    with heard(lambda _: asked.set(), then=signal.SIG_DFL):
        yield asked.is_set
