"""Files wherever they are, and a manifest per batch that makes them count: for places without an atomic rename."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from headrace.crashpoints import reach
from headrace.errors import RetriableError
from headrace.lake.columns import BATCH
from headrace.lake.directories import is_data
from headrace.lake.locks import ASIDE
from headrace.lake.manifest import DataFile, Manifest, is_merge, sort
from headrace.lake.writing import write_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.lake.manifest import Sorted
    from headrace.lake.objects import Found, Objects
    from headrace.types import Batch

PLACE = f"{ASIDE}/manifests"
DATA = "data"


class Manifests:
    """The layout for object stores. A reader asks for the list of files, or reads the manifests."""

    def __init__(self, objects: Objects, pipeline: str, partition_by: Sequence[str]) -> None:
        self._objects = objects
        self._pipeline = pipeline
        self._partition_by = partition_by
        self._merged: frozenset[str] | None = None

    def write(self, batch: Batch, rows: DataFrame) -> None:
        """1. write the files under a name of this attempt alone; 2. make them count by one manifest."""
        name = f"{self._pipeline}-{batch.fingerprint}"
        if self._merged is None:
            self._merged = merged(self._objects)
        if name in self._merged:
            return
        if self._objects.exists(manifest_path(name)):
            self._objects.settle([manifest_path(name)])  # whoever put it may have died before
            return
        # As a partition's directory, so that readers of the files can have it as a column, beside the partitions in it.
        place = f"{DATA}/{BATCH}={name}-{uuid.uuid4().hex}"
        count = write_files(rows, for_spark(self._objects.uri(place)), self._partition_by)
        found = [file for file in self._objects.below(place) if is_data(file.name.rpartition("/")[2])]
        reach("parquet: files written")
        files = tuple(DataFile(file.name, file.size) for file in sorted(found, key=lambda file: file.name))
        with self._objects.publishing():
            # Of a run that was suspended, a compaction may have taken the files for those of a dead one.
            there = {file.name for file in self._objects.below(place)}
            if not there.issuperset(file.path for file in files) or (count and not files):
                raise RetriableError(
                    f"files in {self._objects.uri(place)} were removed before their batch was published",
                    hint="--older-than of headrace compact must be longer than a batch takes",
                )
            self._objects.settle(file.path for file in files)
            # Another attempt may have been first, with the same rows: its manifest stays, for readers know its files.
            self._objects.put(manifest_path(name), Manifest(name, count, files, batch).to_json())
        reach("parquet: manifest written")

    def close(self) -> None:
        """What is half written is left: whether a rival writes it cannot be told, so its age decides (compact)."""


def files(objects: Objects) -> list[str]:
    """Every file that counts, as its readers call it."""
    return sorted(objects.uri(file.path) for manifest in load(objects).visible for file in manifest.files)


def load(objects: Objects) -> Sorted:
    """All manifests, sorted into what counts and what does not."""
    return sort(_read(objects, [found for found in objects.below(PLACE) if found.name.endswith(".json")]))


def merged(objects: Objects) -> frozenset[str]:
    """The names that merges stand for."""
    merges = [found for found in objects.below(PLACE) if is_merge(_name(found.name))]
    return frozenset(sort(_read(objects, merges)).replaced)


def manifest_path(name: str) -> str:
    return f"{PLACE}/{name}.json"


def _read(objects: Objects, found: Sequence[Found]) -> list[Manifest]:
    texts = objects.read([file.name for file in found])
    return [
        Manifest.from_json(text, file.modified)
        for file, text in zip(found, texts, strict=True)
        if text is not None  # removed a moment ago: what replaces it was there before
    ]


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


def for_spark(uri: str) -> str:
    return uri if "://" in uri else f"file://{uri}"
