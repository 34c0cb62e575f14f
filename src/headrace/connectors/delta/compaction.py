"""Compacts a Delta table with deltalake."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connectors.delta.table import LOG, DeltaTablePath
from headrace.connectors.shared.compaction_plan import CompactionPlan, FileGroup, SmallFile
from headrace.connectors.shared.dataset_locks import try_lock
from headrace.errors import ConfigError, RetriableError
from headrace.support.crashpoints import reach
from headrace.support.durable import sync, sync_tree
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


def compact(
    uri: str, *, target: int, execute: bool, on_progress: Callable[[str], None] = lambda line: None
) -> CompactionPlan:
    """1. deltalake merges small files and commits the merged files as their replacement; 2. sync the merged files.

    The replaced files remain for readers of older versions until VACUUM. `target` is in bytes.
    """
    path, exceptions = DeltaTablePath(uri), require("deltalake.exceptions", extra="delta")
    try:
        table = path.load()
        if table is None:
            raise ConfigError(
                f"there is no Delta table at {uri}", hint="sinks.Parquet datasets are compacted on local disks only"
            )
        with _compaction_lock(path) if execute else nullcontext():
            table.update_incremental()  # do not merge again what was compacted before we got the lock
            groups = _groups_of_small_files(table, target)
            files = sum(len(group.files) for group in groups)
            into = sum(-(-group.size // target) for group in groups)
            if execute and groups:
                on_progress(f"merging {files:,} files")
                before = set(table.file_uris())
                metrics = table.optimize.compact(target_size=target)
                files, into = metrics["numFilesRemoved"], metrics["numFilesAdded"]
                reach("compact: committed")
                if path.local is not None:
                    _sync(path.local, {Path(file) for file in set(table.file_uris()) - before})
            return CompactionPlan("delta", groups, files, into)
    except exceptions.CommitFailedError as error:
        raise RetriableError(f"{uri}: {error}", hint="another writer changed the table; run it again") from error
    except (exceptions.DeltaError, OSError) as error:
        raise RetriableError(f"{uri}: {error}", hint="is the table reachable, and the disk not full?") from error


@contextmanager
def _compaction_lock(path: DeltaTablePath) -> Iterator[None]:
    """Allow one compaction at a time of a table on this machine.

    deltalake also commits a second compaction that merged the same files, which would duplicate every row: it does not
    treat replaced files as a conflict if the data did not change (https://github.com/delta-io/delta-rs/pull/3982).
    """
    lock = try_lock(path.local / LOG) if path.local is not None else None
    if path.local is not None and lock is None:
        raise ConfigError(f"{path.uri} is being compacted already", hint="wait until that is done")
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _groups_of_small_files(table: Any, target: int) -> tuple[FileGroup, ...]:
    """The files smaller than `target`, by partition, if at least two of them fit into one file."""
    import pyarrow as pa

    by_partition: dict[str, list[SmallFile]] = {}
    for row in pa.table(table.get_add_actions(flatten=False)).to_pylist():
        partition = "/".join(f"{name}={value}" for name, value in (row.get("partition") or {}).items())
        if row["size_bytes"] < target:
            by_partition.setdefault(partition, []).append(SmallFile(row["path"], row["size_bytes"], "", partition))
    return tuple(
        FileGroup(partition, tuple(files))
        for partition, files in sorted(by_partition.items())
        if len(files) > 1 and sum(sorted(file.size for file in files)[:2]) <= target
    )


def _sync(root: Path, files: set[Path]) -> None:
    for file in files:
        sync(file)
    for directory in {root, *(parent for file in files for parent in file.parents if parent.is_relative_to(root))}:
        sync(directory)
    sync_tree(root / LOG)
