"""Parquet files on a local disk: one directory per batch, published by a single rename."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.crashpoints import reach
from headrace.errors import ConfigError, RetriableError
from headrace.sinks.base import IdempotentSink, without_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from headrace.types import Batch

_ASIDE = "_headrace"


class Parquet(IdempotentSink):
    """Each batch is a directory `headrace_batch=<ranges>` under `path`.

    The name is derived from the ranges, so a repeated batch meets what it published before and leaves it. A
    reader of the folder (Spark, DuckDB, Arrow) sees a batch whole or not at all, and `headrace_batch` as a
    column that tells which rows came together.
    """

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path) and not str(path).startswith("file://"):
            raise ConfigError(
                f"Parquet({str(path)!r}): a local path is meant; publishing there needs an atomic rename",
                hint='sinks.Parquet("out/clicks")',
            )
        self._path = Path(str(path).removeprefix("file://")).absolute()
        self._pipeline = ""
        self._desk: _Desk | None = None

    def __repr__(self) -> str:
        return f"sinks.Parquet({str(self._path)!r})"

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        with self._translated():
            desks = self._path / _ASIDE / pipeline
            desks.mkdir(parents=True, exist_ok=True)
            self._desk = _Desk(desks)
        return self

    def close(self) -> None:
        if self._desk is not None:
            self._desk.clear()
            self._desk = None

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. write the files aside; 2. make them durable; 3. publish them by renaming their directory."""
        if self._desk is None:
            raise ConfigError(f"{self!r} is used before open()")
        published = self._path / f"headrace_batch={self._pipeline}-{batch.fingerprint}"
        if published.exists():
            return
        aside = self._desk.path / uuid.uuid4().hex
        with self._translated():
            without_metadata(rows).write.parquet(aside.as_uri())
            reach("parquet: written aside")
            for file in aside.iterdir():
                _sync(file)
            _sync(aside)
            try:
                aside.rename(published)
            except OSError:
                if not published.exists():
                    raise  # otherwise another attempt at the same batch was first, with the same rows
            reach("parquet: renamed")
            _sync(self._path)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise self._read_only(error) from error
        except OSError as error:
            if error.errno == errno.EROFS:
                raise ConfigError(
                    f"{self._path} cannot be written: {error.strerror}", hint="choose another path"
                ) from error
            message = f"{self._path}: {error.strerror or error}"
            if isinstance(error, FileExistsError | NotADirectoryError):
                raise ConfigError(f"{message}: a directory is meant", hint="choose another path") from error
            raise RetriableError(message, hint=f"df -h {self._path}") from error

    def _read_only(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self._path} cannot be written: {error.strerror}", hint="choose another path")


class _Desk:
    """A directory of this run alone, known to be in use by a lock that dies with the process."""

    def __init__(self, desks: Path) -> None:
        self.path = desks / uuid.uuid4().hex
        self.path.mkdir()
        self._lock = _locked(self.path)
        for other in desks.iterdir():
            if other != self.path and (lock := _locked(other)) is not None:
                shutil.rmtree(other, ignore_errors=True)  # its run is dead
                os.close(lock)

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(directory: Path) -> int | None:
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
