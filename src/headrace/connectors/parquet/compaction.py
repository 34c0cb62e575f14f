"""Small files of a Parquet dataset become large ones, while it is written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connectors.parquet import compact_directories
from headrace.connectors.parquet.directory_layout import manifests, refuse_manifests
from headrace.connectors.shared.partition_columns import BATCH
from headrace.errors import ConfigError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.connectors.shared.compaction_plan import Plan


def compact(root: Path, *, target: int, execute: bool, tell: Callable[[str], None] = lambda line: None) -> Plan:
    """Plan, and if told so do it. `target` is in bytes."""
    refuse_manifests(root, manifests(root))
    if not any(root.glob(f"{BATCH}=*")):
        raise ConfigError(
            f"{root} holds neither batches of sinks.Parquet nor a Delta table",
            hint="headrace compact PATH, of sinks.Parquet(PATH) or sinks.Delta(PATH)",
        )
    try:
        return compact_directories.compact(root.resolve(), target=target, execute=execute, tell=tell)
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename or root}: {error.strerror}", hint="compact as the user that the pipeline runs as"
        ) from error
    except OSError as error:
        raise RetriableError(f"{error.filename or root}: {error.strerror or error}", hint=f"df -h {root}") from error
