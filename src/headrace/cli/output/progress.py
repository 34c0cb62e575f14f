"""Progress on stderr: one line that is updated on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PAUSE = 2.0


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Return a function that shows a line of progress."""
    if sys.stderr is None:  # closed: nobody reads it
        yield lambda line: None
        return
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            yield lambda line: status.update(_plain(line))
        return

    last = 0.0

    def show(line: str) -> None:
        nonlocal last
        counting = " … " in line
        if counting and time.monotonic() - last < _PAUSE:
            return
        if counting:
            last = time.monotonic()
        print(printable(line), file=sys.stderr, flush=True)

    yield show


def _plain(line: str) -> str:
    from rich.markup import escape

    return escape(printable(line))
