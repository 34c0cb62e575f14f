"""Compacts a Parquet dataset: merges small files into a new root directory and exchanges it with the old one."""

from __future__ import annotations

import os
import shutil
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connectors.parquet import merged_batches
from headrace.connectors.parquet.atomic_exchange import exchange, require_exchange
from headrace.connectors.parquet.directory_layout import MERGED, files, manifests, refuse_manifests
from headrace.connectors.parquet.merge_files import common_schema, merge, schema_of
from headrace.connectors.shared.compaction_plan import CompactionPlan, SmallFile, plan_merges
from headrace.connectors.shared.dataset_locks import (
    COMPACTION_LOCK,
    EXCHANGE_LOCK,
    INTERNAL_DIRECTORY,
    compaction_lock,
    exclusive_dataset_lock,
)
from headrace.connectors.shared.partition_columns import BATCH
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.crashpoints import reach
from headrace.support.durable import sync, sync_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headrace.connectors.shared.compaction_plan import FileGroup


def compact(
    root: Path, *, target: int, execute: bool, on_progress: Callable[[str], None] = lambda line: None
) -> CompactionPlan:
    """Plan a compaction, and `execute` it if asked to. `target` is in bytes."""
    refuse_manifests(root, manifests(root))
    if not any(root.glob(f"{BATCH}=*")):
        raise ConfigError(
            f"{root} holds neither batches of sinks.Parquet nor a Delta table",
            hint="headrace compact PATH, of sinks.Parquet(PATH) or sinks.Delta(PATH)",
        )
    try:
        return _compact(root.resolve(), target=target, execute=execute, on_progress=on_progress)
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename or root}: {error.strerror}", hint="compact as the user that the pipeline runs as"
        ) from error
    except OSError as error:
        raise RetriableError(f"{error.filename or root}: {error.strerror or error}", hint=f"df -h {root}") from error


def _compact(root: Path, *, target: int, execute: bool, on_progress: Callable[[str], None]) -> CompactionPlan:
    """1. merge files in a separate directory; while writers wait 2. build the new root from hard links and 3. exchange
    the roots; 4. delete the old root."""
    if not execute:
        return _plan(root, target)
    require_exchange(root.parent)
    with compaction_lock(root):
        workspace = root.with_name(f".{root.name}.headrace")
        shutil.rmtree(workspace, ignore_errors=True)  # left by a compaction that died
        plan = _plan(root, target)
        if plan.merges:
            workspace.mkdir()
            _refuse_another_file_system(root, workspace)
            _merge(root, plan.merges, workspace / "merged", on_progress)
            reach("compact: merged")
            with exclusive_dataset_lock(root):
                _build_root(root, workspace / "root", workspace / "merged", plan.merges)
                reach("compact: root built")
                exchange(root, workspace / "root")
                reach("compact: exchanged")
                sync(root.parent)
                sync(workspace)
            shutil.rmtree(workspace)
            reach("compact: old root removed")
        return plan


def _plan(root: Path, target: int) -> CompactionPlan:
    published = []
    for file in files(root):
        owner, *partition = file.relative_to(root).parts[:-1]
        published.append(SmallFile(str(file.relative_to(root)), file.stat().st_size, owner, "/".join(partition)))
    planned = tuple(plan_merges(published, target, lambda small: schema_of(root / small.path), common_schema))
    return CompactionPlan("parquet", planned, sum(len(merge.files) for merge in planned), len(planned))


def _merge(root: Path, planned: Sequence[FileGroup], directory: Path, on_progress: Callable[[str], None]) -> None:
    batch = directory / f"{BATCH}=merged-{uuid.uuid4().hex[:12]}"
    for number, group in enumerate(planned, 1):
        report = partial(_report_rows, on_progress, f"merging {number} of {len(planned)}")
        target = batch / group.partition / f"part-{number:05}.parquet"
        merge([root / file.path for file in group.files], target, report)


def _report_rows(on_progress: Callable[[str], None], step: str, rows: int) -> None:
    on_progress(f"{step} … {rows:,} rows")


def _build_root(root: Path, new: Path, merged: Path, planned: Sequence[FileGroup]) -> None:
    """Build the new root: the current files of the old root, with the merged files as replacements, and the names of
    their batches."""
    replaced = {small.path for group in planned for small in group.files}
    if missing := next((path for path in replaced if not (root / path).exists()), None):
        raise HeadraceError(
            f"{root / missing} was removed while it was merged; nothing was changed", hint="run it again"
        )
    _link_files(root, new, replaced)
    shutil.copytree(merged, new, copy_function=os.link, dirs_exist_ok=True)
    (new / INTERNAL_DIRECTORY).mkdir(exist_ok=True)
    for lock in (EXCHANGE_LOCK, COMPACTION_LOCK):
        # A hard link to the same lock file, so that a writer that waits in the old root waits for the right lock.
        (new / INTERNAL_DIRECTORY / lock).hardlink_to(root / INTERNAL_DIRECTORY / lock)
    owners = {small.owner for group in planned for small in group.files}
    emptied = [owner.removeprefix(f"{BATCH}=") for owner in owners if not (new / owner).exists()]
    merged_batches.write(new / INTERNAL_DIRECTORY / MERGED, root / INTERNAL_DIRECTORY / MERGED, emptied)
    _copy_permissions(new, root)
    sync_tree(new)


def _link_files(old: Path, new: Path, replaced: Collection[str]) -> None:
    """Link all files except staged and merged ones. A batch without data files gets no directory."""
    new.mkdir()
    for parent, directories, names in os.walk(old):
        if Path(parent) == old:
            directories[:] = [name for name in directories if name != INTERNAL_DIRECTORY]
        relative = Path(parent).relative_to(old)
        for name in names:
            # Hadoop writes a checksum file next to each file.
            data = name.removeprefix(".").removesuffix(".crc") if name.endswith(".parquet.crc") else name
            if str(relative / data) not in replaced:
                (new / relative).mkdir(parents=True, exist_ok=True)
                os.link(Path(parent, name), new / relative / name, follow_symlinks=False)


def _copy_permissions(new: Path, old: Path) -> None:
    """Copy modes and owners from the old directories; new directories get those of the root."""
    for directory, _, _ in os.walk(new):
        model = old / Path(directory).relative_to(new)
        status = (model if model.is_dir() else old).stat()
        Path(directory).chmod(status.st_mode)
        os.chown(directory, status.st_uid, status.st_gid)


def _refuse_another_file_system(root: Path, workspace: Path) -> None:
    if root.stat().st_dev != workspace.stat().st_dev or root.is_mount():
        workspace.rmdir()
        raise ConfigError(
            f"{root} is a file system of its own, and its parent is on another: the two cannot exchange directories",
            hint=f"write to a directory inside it: {root / 'rows'}",
        )
