"""Locks on a local dataset. All of them die with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.support.durable import make_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ASIDE = "_headrace"
"""Ours, below the root: readers pass over names that begin so."""
# The names of pipelines are beside these, and have no tilde.
SWAPPING = "~swapping"
COMPACTING = "~compacting"


@contextmanager
def shared_dataset_lock(root: Path) -> Iterator[None]:
    """While this holds, the root is not exchanged for a compacted one. Many may hold it at once."""
    handle = _file(root, SWAPPING)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


@contextmanager
def exclusive_dataset_lock(root: Path) -> Iterator[None]:
    """Wait until nobody is in the middle of a batch, and keep the next ones waiting."""
    handle = _file(root, SWAPPING)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def compacting(root: Path) -> Iterator[None]:
    """One compaction at a time."""
    handle = _file(root, COMPACTING)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{root} is being compacted already", hint="wait until that is done") from error
        yield
    finally:
        os.close(handle)


def _file(root: Path, name: str) -> int:
    path = root / ASIDE / name
    make_directory(path.parent)
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)


class StagingDirectory:
    """A directory of this run alone, known to be in use by a lock that dies with the process."""

    def __init__(self, desks: Path) -> None:
        make_directory(desks)
        self.path = desks / uuid.uuid4().hex
        self.path.mkdir()
        self._lock = locked(self.path)
        for other in desks.iterdir():
            if other != self.path and (lock := locked(other)) is not None:
                shutil.rmtree(other, ignore_errors=True)  # its run is dead
                os.close(lock)

    @property
    def in_place(self) -> bool:
        """Whether it is still where its path says: not so after its root was exchanged for another."""
        try:
            return self._lock is not None and os.path.samestat(os.fstat(self._lock), self.path.stat())
        except FileNotFoundError:
            return False

    def clear(self) -> None:
        if self.in_place:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def locked(directory: Path) -> int | None:
    """A lock on a directory that nobody else has, or None."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
