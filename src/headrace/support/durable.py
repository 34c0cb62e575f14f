"""Syncs files, and the directories that contain them, to disk before a commit counts."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Fsync a file, or the entries of a directory, so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(directory: Path) -> None:
    """Fsync all files and directories below `directory`, and `directory` itself, but not its entry in its parent."""
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, and sync the entry of each."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
