"""Plans which small files to merge. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Schema = TypeVar("Schema")

_MIN_FILL = 0.75
"""Fraction of the target. Larger files are not merged, so that a second compaction finds nothing to do."""


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A published file. `owner` is its batch, `partition` its directories (`day=…/kind=…`)."""

    path: str
    size: int
    owner: str
    partition: str


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files with equal partition values to merge into one."""

    partition: str
    files: tuple[SmallFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a compaction would do or did: it merges `files` files into `into` files."""

    layout: str
    merges: tuple[FileGroup, ...]
    files: int
    into: int


def plan_merges(
    files: Iterable[SmallFile],
    target: int,
    schema_of: Callable[[SmallFile], Schema | None],
    common_schema: Callable[[Schema, Schema], Schema | None],
) -> list[FileGroup]:
    """Plan merges so that files have about `target` bytes.

    `schema_of` returns None for a file that must not be merged; `common_schema` returns None for incompatible schemas.
    """
    by_partition: dict[str, list[SmallFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.size < target * _MIN_FILL:
            by_partition.setdefault(file.partition, []).append(file)
    planned = []
    for partition, small in sorted(by_partition.items()):
        if len(small) > 1:
            planned += _fill_bins(partition, small, target, schema_of, common_schema)
    return planned


def _fill_bins(
    partition: str,
    small: list[SmallFile],
    target: int,
    schema_of: Callable[[SmallFile], Schema | None],
    common_schema: Callable[[Schema, Schema], Schema | None],
) -> list[FileGroup]:
    full: list[list[SmallFile]] = []
    bins: list[_Bin[Schema]] = []
    for file in small:
        schema = schema_of(file)
        if schema is None:
            continue
        for open_bin in bins:
            if (common := common_schema(open_bin.schema, schema)) is not None:
                open_bin.add(file, common)
                if open_bin.size >= target:
                    full.append(open_bin.files)
                    bins.remove(open_bin)
                break
        else:
            bins.append(_Bin(schema, [file], file.size))
    groups = [*full, *(open_bin.files for open_bin in bins)]
    return [FileGroup(partition, tuple(files)) for files in groups if len(files) > 1]


@dataclass(eq=False, slots=True)
class _Bin(Generic[Schema]):
    """Compatible files whose total size is still below the target."""

    schema: Schema
    files: list[SmallFile]
    size: int

    def add(self, file: SmallFile, schema: Schema) -> None:
        self.files.append(file)
        self.size += file.size
        self.schema = schema
