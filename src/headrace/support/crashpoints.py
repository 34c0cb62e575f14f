"""Named points at which tests kill a run. They do nothing in production."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _pass(point: str) -> None:
    """Do nothing: in production a point has no effect."""


_hooks: list[Callable[[str], None]] = [_pass]


def reach(point: str) -> None:
    """Mark a point between two effects at which a crash suite can stop the process."""
    _hooks[0](point)


def install(hook: Callable[[str], None] | None) -> None:
    """Install a callback for all points; None removes it. Only `headrace.testing` calls this."""
    _hooks[0] = hook or _pass
