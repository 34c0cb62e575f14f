"""Relative paths in a pipeline's file belong to the folder of the file, and not to the current directory."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

_FOLDER: ContextVar[Path | None] = ContextVar("headrace_folder", default=None)
"""The folder of the file that is being loaded."""
_GIVEN: dict[Path, Path] = {}
"""Paths that were found to be below a folder, and how they were written."""
_EXPORTED = "HEADRACE_FOLDER"
_OF_WORKERS = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_DIR", "PYTHON_WORKER_FACTORY_SOCK_PATH")
"""Variables that only the Python workers of Spark have: a secret, or the place of a socket."""


@contextmanager
def paths_below(folder: Path) -> Iterator[None]:
    """Within it, `located` takes relative paths to be below `folder`."""
    token = _FOLDER.set(_plain(folder.absolute()))
    try:
        yield
    finally:
        _FOLDER.reset(token)


def export(folder: Path) -> None:
    """For Spark's Python workers, which are started later: they import the file again, by its name."""
    os.environ[_EXPORTED] = str(_plain(folder.absolute()))


def located(path: str | PathLike[str]) -> Path:
    """A path as a user wrote it: below the folder of the file that is being loaded, if one is."""
    folder = _FOLDER.get() or _of_worker()
    if folder is None:
        return Path(path)
    found = folder / path
    if not Path(path).is_absolute():
        _GIVEN[found] = Path(path)
    return found


def below_here(path: Path) -> Path | None:
    """Where `located` would have led without the folder of a file: below the current directory."""
    return None if path not in _GIVEN else Path.cwd() / _GIVEN[path]


def _plain(folder: Path) -> Path:
    """Without `..`, where that leads to the same folder: behind a symbolic link it may not."""
    plain = Path(os.path.normpath(folder))
    with suppress(OSError):
        if plain.samefile(folder):
            return plain
    return folder


def _of_worker() -> Path | None:
    """Not in other processes that inherit the variable: paths of a program belong to the current directory."""
    exported = os.environ.get(_EXPORTED)
    return Path(exported) if exported and any(name in os.environ for name in _OF_WORKERS) else None
