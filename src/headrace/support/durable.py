"""What has to reach the disk of this machine before a commit counts: files, and the directories that name them."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return when a file, or the entries of a directory, would outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(directory: Path) -> None:
    """The same of every file and directory below, and of `directory`; not of its own name in its parent."""
    for place, _, found in os.walk(directory, topdown=False):
        for name in found:
            sync(Path(place, name))
        sync(Path(place))


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, and sync the entry of each."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)
