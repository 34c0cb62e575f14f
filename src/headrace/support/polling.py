"""Waiting for a file that can be read or written: not by select(), which knows no more than 1,024 files of a
process."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


def readable(file: FileDescriptorLike, seconds: float | None = None) -> bool:
    return _ready(file, selectors.EVENT_READ, seconds)


def writable(file: FileDescriptorLike) -> bool:
    return _ready(file, selectors.EVENT_WRITE, None)


def _ready(file: FileDescriptorLike, event: int, seconds: float | None) -> bool:
    with selectors.PollSelector() as waiting:  # epoll refuses plain files, poll finds them ready
        waiting.register(file, event)
        return bool(waiting.select(seconds))
