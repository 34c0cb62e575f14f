"""Suggests a known word for an unknown one, for hints."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """`did you mean X?`, if a known word is similar enough, regardless of case."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f"did you mean {by_lower[near[0]]}?" if near else None
