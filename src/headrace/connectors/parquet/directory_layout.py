"""A directory per batch on a local disk, published by a single rename."""

from __future__ import annotations

import os
import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connectors.parquet import merged_batches
from headrace.connectors.shared.dataset_locks import (
    EXCHANGE_LOCK,
    INTERNAL_DIRECTORY,
    StagingDirectory,
    shared_dataset_lock,
)
from headrace.connectors.shared.parquet_writer import write_files
from headrace.connectors.shared.partition_columns import BATCH
from headrace.errors import ConfigError
from headrace.support.crashpoints import reach
from headrace.support.durable import sync, sync_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from headrace.types import Batch

MERGED = "~merged"


class Directories:
    """Readers of the folder see only complete batches and need no Headrace API."""

    def __init__(self, root: Path, pipeline: str, partition_by: Sequence[str]) -> None:
        self._root = root
        self._pipeline = pipeline
        self._partition_by = partition_by
        self._staging = StagingDirectory(self._staging_directories)

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. write the files to a staging directory; 2. sync them; 3. publish them by renaming their directory."""
        name = f"{self._pipeline}-{batch.fingerprint}"
        published = self._root / f"{BATCH}={name}"
        with shared_dataset_lock(self._root):
            # Checked under the lock: a compaction moves a batch from the directories to the merged names.
            if published.exists() or merged_batches.contains(self._root / INTERNAL_DIRECTORY / MERGED, name):
                sync(self._root)  # the run that renamed it may have died before its sync
                return
            if not self._staging.in_place:
                self._staging.clear()
                self._staging = StagingDirectory(self._staging_directories)
            staged = self._staging.path / uuid.uuid4().hex
            write_files(rows, f"file://{staged}", self._partition_by)
            reach("parquet: files staged")
            sync_tree(staged)
            try:
                staged.rename(published)
            except OSError:
                if not published.exists():
                    raise  # otherwise another attempt has published the same rows of this batch
            reach("parquet: renamed")
            sync(self._root)

    def close(self) -> None:
        self._staging.clear()

    @property
    def _staging_directories(self) -> Path:
        return self._root / INTERNAL_DIRECTORY / self._pipeline


def refuse_manifests(root: str | Path, remains: Iterable[str | Path]) -> None:
    """ConfigError if there are `remains` of the former layout, whose manifests listed the valid files."""
    if list(remains):
        raise ConfigError(
            f"{root} holds a dataset with manifests, a layout that is no longer read or written",
            hint="choose another path; _headrace/manifests/*.json name the files that hold the rows of this one",
        )


def manifests(root: Path) -> list[Path]:
    """The remains of the former layout in a local directory: manifests, and files that no manifest lists yet."""
    return [*root.glob(f"{INTERNAL_DIRECTORY}/manifests/*.json"), *root.glob(f"data/{BATCH}=*")]


def files(root: Path) -> list[Path]:
    """A consistent list of all published files: no compaction changes it midway."""
    refuse_manifests(root, manifests(root))
    # Writers and compactions create the lock file. A reader may not be allowed to, and does not need to.
    with shared_dataset_lock(root) if (root / INTERNAL_DIRECTORY / EXCHANGE_LOCK).exists() else nullcontext():
        return sorted(_data_files(root))


def _data_files(root: Path) -> Iterator[Path]:
    """The data files of the published batches."""
    for batch in root.glob(f"{BATCH}=*"):
        for directory, _, names in os.walk(batch):
            yield from (Path(directory, name) for name in names if is_data_file(name))


def is_data_file(name: str) -> bool:
    """Whether readers treat a file as a data file."""
    return name.endswith(".parquet") and not name.startswith(("_", "."))
