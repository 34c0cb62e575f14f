"""Relative paths in a pipeline's file belong to the folder of the file, and not to the current directory."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

_FOLDER: ContextVar[Path | None] = ContextVar("headrace_folder", default=None)
"""The folder of the file that is being loaded."""


@contextmanager
def paths_below(folder: Path) -> Iterator[None]:
    """Within it, `located` takes relative paths to be below `folder`."""
    token = _FOLDER.set(folder.absolute())
    try:
        yield
    finally:
        _FOLDER.reset(token)


def located(path: str | PathLike[str]) -> Path:
    """A path as a user wrote it: below the folder of the file that is being loaded, if one is."""
    folder = _FOLDER.get()
    return Path(path) if folder is None else folder / path
