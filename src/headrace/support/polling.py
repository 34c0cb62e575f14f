"""Waits for a condition, or until a file is readable or writable."""

from __future__ import annotations

import selectors
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import FileDescriptorLike

_Value = TypeVar("_Value")


def wait_until(condition: Callable[[], _Value], timeout: float, interval: float = 0.05) -> _Value:
    """Call `condition` every `interval` seconds until it is true or `timeout` has passed. Return its last value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(interval)
    return value


def readable(file: FileDescriptorLike, seconds: float | None = None) -> bool:
    return _wait_for_event(file, selectors.EVENT_READ, seconds)


def writable(file: FileDescriptorLike) -> bool:
    return _wait_for_event(file, selectors.EVENT_WRITE, None)


def _wait_for_event(file: FileDescriptorLike, event: int, seconds: float | None) -> bool:
    # select() fails on descriptors above 1,023, epoll on plain files.
    with selectors.PollSelector() as selector:
        selector.register(file, event)
        return bool(selector.select(seconds))
