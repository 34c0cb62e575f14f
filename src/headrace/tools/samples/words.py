"""Sample lines of text for word counts."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from headrace.tools.samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

_SUBJECTS = ("the river", "a wheel", "the miller", "an old dog", "the quick fox", "rain", "the field", "a child")
_VERBS = ("turns", "carries", "watches", "follows", "fills", "forgets", "waits for", "jumps over")
_ADVERBIALS = ("at night", "every day", "again", "in the valley", "near the bridge", "without a word", "slowly")
_ENDS = (".", ".", ".", "!", "?")


def words(seed: int, times: Iterable[datetime]) -> Iterator[Sample]:
    """Sentences without a key."""
    chance = Random(seed)  # noqa: S311 - made-up data
    for at in times:
        parts = [chance.choice(_SUBJECTS), chance.choice(_VERBS), chance.choice(_SUBJECTS)]
        if chance.random() < 0.5:
            parts.append(chance.choice(_ADVERBIALS))
        line = " ".join(parts) + chance.choice(_ENDS)
        yield Sample(None, (line[0].upper() + line[1:]).encode(), (), at)
