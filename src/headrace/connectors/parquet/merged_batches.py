"""The names of merged batches in one sorted file, which lookups search without reading all of it."""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_WIDTH = 33


def contains(file: Path, name: str) -> bool:
    """Whether the file has `name`; False if the file does not exist."""
    line = _line(name)
    try:
        with file.open("rb") as lines:
            count = lines.seek(0, 2) // _WIDTH

            def read_line(number: int) -> bytes:
                lines.seek(number * _WIDTH)
                return lines.read(_WIDTH)

            number = bisect_left(range(count), line, key=read_line)
            return number < count and read_line(number) == line
    except FileNotFoundError:
        return False


def write(file: Path, before: Path, names: Iterable[str]) -> None:
    """Write `names` and the content of `before`, if that exists, to `file`."""
    added = sorted({_line(name) for name in names})
    with file.open("wb") as out:
        if before.exists():
            with before.open("rb") as known:
                out.writelines(heapq.merge(known, added))
        else:
            out.writelines(added)


def _line(name: str) -> bytes:
    """A line of fixed width, so that a reader can seek to the n-th line."""
    return hashlib.sha256(name.encode()).hexdigest()[: _WIDTH - 1].encode() + b"\n"
