"""Small files of a Parquet dataset become large ones, while it is written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import ConfigError, RetriableError
from headrace.lake import compact_directories
from headrace.lake.columns import BATCH
from headrace.lake.directories import manifests, refuse_manifests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.lake.plan import Plan


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
