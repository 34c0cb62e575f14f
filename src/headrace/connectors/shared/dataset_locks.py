"""Locks on a local dataset. The operating system releases them when their process ends."""

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

INTERNAL_DIRECTORY = "_headrace"
"""Headrace's directory below the root. Readers skip names that begin with an underscore."""
# The same directory has subdirectories named like pipelines; those names have no tilde.
EXCHANGE_LOCK = "~swapping"
COMPACTION_LOCK = "~compacting"


@contextmanager
def shared_dataset_lock(root: Path) -> Iterator[None]:
    """While any process has this lock, the root is not exchanged for a compacted one. Several may have it at once."""
    handle = _open_lock_file(root, EXCHANGE_LOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


@contextmanager
def exclusive_dataset_lock(root: Path) -> Iterator[None]:
    """Wait until no process is writing a batch, and block new batches."""
    handle = _open_lock_file(root, EXCHANGE_LOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def compaction_lock(root: Path) -> Iterator[None]:
    """Allow one compaction at a time."""
    handle = _open_lock_file(root, COMPACTION_LOCK)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{root} is being compacted already", hint="wait until that is done") from error
        yield
    finally:
        os.close(handle)


def _open_lock_file(root: Path, name: str) -> int:
    path = root / INTERNAL_DIRECTORY / name
    make_directory(path.parent)
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)


class StagingDirectory:
    """A directory that only this run uses. A lock, which is released when the process ends, marks it as in use."""

    def __init__(self, parent: Path) -> None:
        make_directory(parent)
        self.path = parent / uuid.uuid4().hex
        self.path.mkdir()
        self._lock = try_lock(self.path)
        for other in parent.iterdir():
            if other != self.path and (lock := try_lock(other)) is not None:
                shutil.rmtree(other, ignore_errors=True)  # its run is dead
                os.close(lock)

    @property
    def in_place(self) -> bool:
        """Whether the directory is still at its path: it is not after its root was exchanged."""
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


def try_lock(directory: Path) -> int | None:
    """Lock a directory. None if it does not exist or another process has the lock."""
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
