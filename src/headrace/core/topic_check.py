"""Checks, after the rows of a batch were read, that no topic was recreated since the batch was planned."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Check = Callable[[], None]

_current: ContextVar[Check | None] = ContextVar("headrace_topic_check", default=None)


@contextmanager
def checking(check: Check) -> Iterator[None]:
    """Within the block, `check` compares the topic ids of the batch that is being written."""
    token = _current.set(check)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Check | None:
    """The check of the batch that is being written, for tasks that commit by themselves; it can be pickled."""
    return _current.get()


def verify() -> None:
    """Raise TopicRecreated if a topic was deleted and created again since the batch was planned.

    A sink calls it when all rows of a batch have been read, before any of them become visible: records that were read
    before the comparison belong to the planned topic, because an id never comes back.
    """
    if (check := _current.get()) is not None:
        check()
