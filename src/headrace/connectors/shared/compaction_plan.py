"""Plans which small files to merge. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Schema = TypeVar("Schema")

_LARGE_ENOUGH = 0.75
"""Fraction of the target. Larger files are not merged, so that a second compaction finds nothing to do."""


@dataclass(frozen=True, slots=True)
class Small:
    """A published file. `owner` is its batch, `partition` its directories (`day=…/kind=…`)."""

    path: str
    size: int
    owner: str
    partition: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Files with equal partition values to merge into one."""

    partition: str
    files: tuple[Small, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a compaction would do or did: it merges `files` files into `into` files."""

    layout: str
    merges: tuple[Merge, ...]
    files: int
    into: int


def merges(
    files: Iterable[Small],
    target: int,
    schema_of: Callable[[Small], Schema | None],
    together: Callable[[Schema, Schema], Schema | None],
) -> list[Merge]:
    """Plan merges so that files have about `target` bytes.

    `schema_of` returns None for a file that must not be merged; `together` returns None for incompatible schemas.
    """
    by_partition: dict[str, list[Small]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.size < target * _LARGE_ENOUGH:
            by_partition.setdefault(file.partition, []).append(file)
    planned = []
    for partition, small in sorted(by_partition.items()):
        if len(small) > 1:
            planned += _binned(partition, small, target, schema_of, together)
    return planned


def _binned(
    partition: str,
    small: list[Small],
    target: int,
    schema_of: Callable[[Small], Schema | None],
    together: Callable[[Schema, Schema], Schema | None],
) -> list[Merge]:
    full: list[list[Small]] = []
    bins: list[_Bin[Schema]] = []
    for file in small:
        schema = schema_of(file)
        if schema is None:
            continue
        for held in bins:
            if (common := together(held.schema, schema)) is not None:
                held.add(file, common)
                if held.size >= target:
                    full.append(held.files)
                    bins.remove(held)
                break
        else:
            bins.append(_Bin(schema, [file], file.size))
    return [Merge(partition, tuple(files)) for files in (*full, *(held.files for held in bins)) if len(files) > 1]


@dataclass(eq=False, slots=True)
class _Bin(Generic[Schema]):
    """Compatible files whose total size is still below the target."""

    schema: Schema
    files: list[Small]
    size: int

    def add(self, file: Small, schema: Schema) -> None:
        self.files.append(file)
        self.size += file.size
        self.schema = schema
