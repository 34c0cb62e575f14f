"""Exchanges two directories atomically with Linux's renameat2."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from pathlib import Path

from headrace.errors import ConfigError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)


def exchange(first: Path, second: Path) -> None:
    """Exchange two paths. OSError if that is not possible."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(first))


def require_exchange(directory: Path) -> None:
    """ConfigError unless directories inside `directory` can be exchanged: this tries it."""
    with tempfile.TemporaryDirectory(dir=directory, prefix=".headrace-") as temporary:
        pair = [Path(temporary, name) for name in ("first", "second")]
        for path in pair:
            path.mkdir()
        try:
            exchange(*pair)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            raise ConfigError(
                f"the file system of {directory} cannot exchange two directories in one step: {error.strerror}",
                hint="ext4, xfs, btrfs and tmpfs can; a Delta table is compacted on any file system",
            ) from error
