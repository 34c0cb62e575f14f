"""Small files of a dataset become large ones, while it is written and read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from headrace.lake.place import Place
    from headrace.lake.plan import Merge


@dataclass(frozen=True, slots=True)
class Plan:
    """What a compaction would do, or did."""

    layout: str
    merges: tuple[Merge, ...]
    stale: tuple[str, ...] = ()
    """Files that count for nobody and are old enough to be removed."""
    stale_bytes: int = 0

    @property
    def files(self) -> int:
        return sum(len(merge.files) for merge in self.merges)


def compact(
    place: Place,
    *,
    target: int,
    older_than: float,
    execute: bool,
    spark: SparkSession | None = None,
    tell: Callable[[str], None] = lambda line: None,
    now: Callable[[], float] = time.time,
) -> Plan:
    """Plan, and if told so do it. `older_than` is in seconds, `target` in bytes."""
    from headrace.lake import compact_directories, compact_manifests

    layout = place.layout(spark)
    if layout is None:
        raise ConfigError(f"{place}: there is nothing to compact", hint="headrace compact PATH, of sinks.Parquet(PATH)")
    before = now() - older_than
    try:
        if layout == "rename":
            return compact_directories.compact(place.here.resolve(), target=target, execute=execute, tell=tell)
        return compact_manifests.compact(place, spark, target=target, before=before, execute=execute, tell=tell)
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename or place}: {error.strerror}", hint="compact as the user that the pipeline runs as"
        ) from error
    except OSError as error:
        raise RetriableError(f"{error.filename or place}: {error.strerror or error}", hint=f"df -h {place}") from error


def progress(number: int, merges: int, rows: int) -> str:
    return f"merging {number} of {merges} … {rows:,} rows"
