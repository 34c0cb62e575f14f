"""Named points where tests kill a run. They do nothing in production."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _pass(point: str) -> None:
    """In production a point is just a name."""


_hooks: list[Callable[[str], None]] = [_pass]


def reach(point: str) -> None:
    """Mark a point between two effects, so that a crash suite can stop the process exactly there."""
    _hooks[0](point)


def install(hook: Callable[[str], None] | None) -> None:
    """Called by `headrace.testing` alone: be told of every point, or (None) of none."""
    _hooks[0] = hook or _pass
