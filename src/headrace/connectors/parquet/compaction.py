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
from headrace.connectors.parquet.merge_files import merge, schema_of, together
from headrace.connectors.shared.compaction_plan import Plan, Small, merges
from headrace.connectors.shared.dataset_locks import ASIDE, COMPACTING, SWAPPING, compacting, exclusive_dataset_lock
from headrace.connectors.shared.partition_columns import BATCH
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.support.crashpoints import reach
from headrace.support.durable import sync, sync_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headrace.connectors.shared.compaction_plan import Merge


def compact(root: Path, *, target: int, execute: bool, tell: Callable[[str], None] = lambda line: None) -> Plan:
    """Plan a compaction, and `execute` it if asked to. `target` is in bytes."""
    refuse_manifests(root, manifests(root))
    if not any(root.glob(f"{BATCH}=*")):
        raise ConfigError(
            f"{root} holds neither batches of sinks.Parquet nor a Delta table",
            hint="headrace compact PATH, of sinks.Parquet(PATH) or sinks.Delta(PATH)",
        )
    try:
        return _compact(root.resolve(), target=target, execute=execute, tell=tell)
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename or root}: {error.strerror}", hint="compact as the user that the pipeline runs as"
        ) from error
    except OSError as error:
        raise RetriableError(f"{error.filename or root}: {error.strerror or error}", hint=f"df -h {root}") from error


def _compact(root: Path, *, target: int, execute: bool, tell: Callable[[str], None]) -> Plan:
    """1. merge files in a separate directory; while writers wait 2. build the new root from hard links and 3. exchange
    the roots; 4. delete the old root."""
    if not execute:
        return _plan(root, target)
    require_exchange(root.parent)
    with compacting(root):
        beside = root.with_name(f".{root.name}.headrace")
        shutil.rmtree(beside, ignore_errors=True)  # of a dead compaction
        plan = _plan(root, target)
        if plan.merges:
            beside.mkdir()
            _refuse_another_file_system(root, beside)
            _merge(root, plan.merges, beside / "merged", tell)
            reach("compact: merged")
            with exclusive_dataset_lock(root):
                _build(root, beside / "root", beside / "merged", plan.merges)
                reach("compact: root built")
                exchange(root, beside / "root")
                reach("compact: exchanged")
                sync(root.parent)
                sync(beside)
            shutil.rmtree(beside)
            reach("compact: old root removed")
        return plan


def _plan(root: Path, target: int) -> Plan:
    found = []
    for file in files(root):
        owner, *partition = file.relative_to(root).parts[:-1]
        found.append(Small(str(file.relative_to(root)), file.stat().st_size, owner, "/".join(partition)))
    planned = tuple(merges(found, target, lambda small: schema_of(root / small.path), together))
    return Plan("parquet", planned, sum(len(merge.files) for merge in planned), len(planned))


def _merge(root: Path, planned: Sequence[Merge], place: Path, tell: Callable[[str], None]) -> None:
    batch = place / f"{BATCH}=merged-{uuid.uuid4().hex[:12]}"
    for number, group in enumerate(planned, 1):
        show = partial(_show, tell, f"merging {number} of {len(planned)}")
        merge([root / small.path for small in group.files], batch / group.partition / f"part-{number:05}.parquet", show)


def _show(tell: Callable[[str], None], what: str, rows: int) -> None:
    tell(f"{what} … {rows:,} rows")


def _build(root: Path, new: Path, merged: Path, planned: Sequence[Merge]) -> None:
    """Build the new root: the current files of the old root, with the merged files as replacements, and the names of
    their batches."""
    gone = {small.path for group in planned for small in group.files}
    if missing := next((path for path in gone if not (root / path).exists()), None):
        raise HeadraceError(
            f"{root / missing} was removed while it was merged; nothing was changed", hint="run it again"
        )
    _link(root, new, gone)
    shutil.copytree(merged, new, copy_function=os.link, dirs_exist_ok=True)
    (new / ASIDE).mkdir(exist_ok=True)
    for lock in (SWAPPING, COMPACTING):
        # A hard link to the same lock file, so that a writer that waits in the old root waits for the right lock.
        (new / ASIDE / lock).hardlink_to(root / ASIDE / lock)
    owners = {small.owner for group in planned for small in group.files}
    emptied = [owner.removeprefix(f"{BATCH}=") for owner in owners if not (new / owner).exists()]
    merged_batches.write(new / ASIDE / MERGED, root / ASIDE / MERGED, emptied)
    _permit(new, root)
    sync_tree(new)


def _link(old: Path, new: Path, gone: Collection[str]) -> None:
    """Link all files except staged and merged ones. A batch without data files gets no directory."""
    new.mkdir()
    for place, directories, found in os.walk(old):
        if Path(place) == old:
            directories[:] = [name for name in directories if name != ASIDE]
        here = Path(place).relative_to(old)
        for name in found:
            # Hadoop writes a checksum file next to each file.
            data = name.removeprefix(".").removesuffix(".crc") if name.endswith(".parquet.crc") else name
            if str(here / data) not in gone:
                (new / here).mkdir(parents=True, exist_ok=True)
                os.link(Path(place, name), new / here / name, follow_symlinks=False)


def _permit(new: Path, old: Path) -> None:
    """Copy modes and owners from the old directories; new directories get those of the root."""
    for place, _, _ in os.walk(new):
        model = old / Path(place).relative_to(new)
        like = (model if model.is_dir() else old).stat()
        Path(place).chmod(like.st_mode)
        os.chown(place, like.st_uid, like.st_gid)


def _refuse_another_file_system(root: Path, beside: Path) -> None:
    if root.stat().st_dev != beside.stat().st_dev or root.is_mount():
        beside.rmdir()
        raise ConfigError(
            f"{root} is a file system of its own, and its parent is on another: the two cannot exchange directories",
            hint=f"write to a directory inside it: {root / 'rows'}",
        )
