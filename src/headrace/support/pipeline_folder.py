"""Resolves relative paths in a pipeline's file against the folder of the file, not the current directory."""

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
_UNRESOLVED: dict[Path, Path] = {}
"""Paths that were resolved against a folder, and how they were written."""
_EXPORTED = "HEADRACE_FOLDER"
_WORKER_VARIABLES = (
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_SOCK_DIR",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
)
"""Variables that only Spark's Python workers have: a secret, or the path of a socket."""


@contextmanager
def relative_paths_in(folder: Path) -> Iterator[None]:
    """Within the block, `resolve_path` resolves relative paths against `folder`."""
    token = _FOLDER.set(_without_dots(folder.absolute()))
    try:
        yield
    finally:
        _FOLDER.reset(token)


def export(folder: Path) -> None:
    """Export the folder to Spark's Python workers, which start later and import the file again by name."""
    os.environ[_EXPORTED] = str(_without_dots(folder.absolute()))


def resolve_path(path: str | PathLike[str]) -> Path:
    """Resolve a user's path against the folder of the file that is being loaded, if one is."""
    folder = _FOLDER.get() or _exported_folder()
    if folder is None:
        return Path(path)
    resolved = folder / path
    if not Path(path).is_absolute():
        _UNRESOLVED[resolved] = Path(path)
    return resolved


def path_in_working_directory(path: Path) -> Path | None:
    """The path that `resolve_path` would have returned without a file: one below the current directory."""
    return None if path not in _UNRESOLVED else Path.cwd() / _UNRESOLVED[path]


def _without_dots(folder: Path) -> Path:
    """Remove `..` if the result is the same folder; after a symbolic link it may not be."""
    plain = Path(os.path.normpath(folder))
    with suppress(OSError):
        if plain.samefile(folder):
            return plain
    return folder


def _exported_folder() -> Path | None:
    """The exported folder, only in Python workers: other processes that inherit it use the current directory."""
    exported = os.environ.get(_EXPORTED)
    return Path(exported) if exported and any(name in os.environ for name in _WORKER_VARIABLES) else None
