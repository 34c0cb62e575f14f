"""Compaction of a dataset with manifests: the merge is published by one, and what it replaces goes later."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from typing import TYPE_CHECKING

from headrace.crashpoints import reach
from headrace.lake import merging
from headrace.lake.columns import BATCH
from headrace.lake.compaction import Plan, progress
from headrace.lake.directories import is_data
from headrace.lake.locks import compacting
from headrace.lake.manifest import DataFile, Manifest
from headrace.lake.manifests import DATA, load, manifest_path
from headrace.lake.objects import Local
from headrace.lake.plan import Small, merges
from headrace.lake.writing import write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.lake.manifest import Sorted
    from headrace.lake.objects import Found, Objects
    from headrace.lake.place import Place
    from headrace.lake.plan import Merge


def compact(
    place: Place,
    spark: SparkSession | None,
    *,
    target: int,
    before: float,
    execute: bool,
    tell: Callable[[str], None],
) -> Plan:
    """1. merge; 2. publish the merge by one manifest; 3. remove what has counted for nobody since `before`."""
    objects = place.objects(spark)
    with compacting(place.local) if execute and place.local else nullcontext():
        data = objects.below(DATA)  # before the manifests: files of one published in between then have one
        known = load(objects)
        planned = _planned(place, objects, spark, known, target)
        outdated = [m.name for m in known.hidden if known.replaced[m.name].published < before]
        stale = _stale(data, known, outdated, before)
        plan = Plan("manifest", planned, tuple(file.name for file in stale), sum(file.size for file in stale))
        if execute:
            if planned:
                objects.put(*_merged(place, objects, spark, known, planned, tell))
                reach("compact: manifest written")
            # Merges that came second first of all: once the winner is itself replaced and gone, they would count.
            objects.remove(manifest_path(manifest.name) for manifest in known.rejected)
            objects.remove(manifest_path(name) for name in outdated)
            reach("compact: manifests removed")
            with objects.sweeping():
                # Again: a run that seemed dead may have published its files since.
                objects.remove(file.name for file in _stale(stale, load(objects), outdated, before))
            reach("compact: files removed")
        return plan


def _planned(
    place: Place, objects: Objects, spark: SparkSession | None, known: Sorted, target: int
) -> tuple[Merge, ...]:
    root = place.local
    if root is not None:
        return tuple(
            merges(_small(known), target, lambda small: merging.schema_of(root / small.path), merging.together)
        )
    session = place.session(spark)
    return tuple(merges(_small(known), target, lambda small: _columns(session, objects.uri(small.path)), _together))


def _columns(spark: SparkSession, uri: str) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in spark.read.parquet(uri).schema.fields}


def _together(one: dict[str, str], other: dict[str, str]) -> dict[str, str] | None:
    common = one | other
    fits = all(one[name] == kind for name, kind in other.items() if name in one)
    return common if fits and len({name.lower() for name in common}) == len(common) else None


def _small(known: Sorted) -> list[Small]:
    found = []
    for manifest in known.visible:
        for file in manifest.files:
            _, _, *partition = file.path.split("/")[:-1]  # data/<attempt>/<partition …>/<file>
            found.append(Small(file.path, file.size, manifest.name, "/".join(partition)))
    return found


def _stale(data: Sequence[Found], known: Sorted, outdated: Sequence[str], before: float) -> list[Found]:
    """Old files that no manifest names, but for manifests that are going."""
    manifests = [*known.visible, *(manifest for manifest in known.hidden if manifest.name not in outdated)]
    named = {file.path for manifest in manifests for file in manifest.files}
    return [file for file in data if _twin(file.name) not in named and file.modified < before]


def _twin(name: str) -> str:
    """The file that one with Hadoop's checksums belongs to; any other is its own."""
    directory, slash, file = name.rpartition("/")
    return f"{directory}{slash}{file[1:-4]}" if file.startswith(".") and file.endswith(".crc") else name


def _merged(
    place: Place,
    objects: Objects,
    spark: SparkSession | None,
    known: Sorted,
    planned: Sequence[Merge],
    tell: Callable[[str], None],
) -> tuple[str, bytes]:
    """Merge, and return the manifest that will make the merged files count, with its path."""
    name = f"merged-{uuid.uuid4().hex[:12]}"
    gone = {small.path for group in planned for small in group.files}
    owners = {small.owner for group in planned for small in group.files}
    replaced = [manifest for manifest in known.visible if manifest.name in owners]
    files = [file for manifest in replaced for file in manifest.files if file.path not in gone]
    for number, group in enumerate(planned, 1):
        into = "/".join(part for part in (DATA, f"{BATCH}={name}-{number:05}", group.partition) if part)
        if place.local is not None:
            files.append(_merge_here(place.local, group, f"{into}/part-00000.parquet", number, planned, tell))
        else:
            tell(f"merging {number} of {len(planned)}")
            files += _merge_there(objects, place.session(spark), group, into)
    reach("compact: merged")
    names = owners.union(*(manifest.replaces for manifest in replaced))
    rows = sum(manifest.rows for manifest in replaced)
    return manifest_path(name), Manifest(name, rows, tuple(files), replaces=frozenset(names)).to_json()


def _merge_here(
    root: Path, group: Merge, into: str, number: int, planned: Sequence[Merge], tell: Callable[[str], None]
) -> DataFile:
    sources = [root / small.path for small in group.files]
    merging.merge(sources, root / into, lambda rows: tell(progress(number, len(planned), rows)))
    Local(root).settle([into])
    return DataFile(into, (root / into).stat().st_size)


def _merge_there(objects: Objects, spark: SparkSession, group: Merge, into: str) -> list[DataFile]:
    """By Spark, which has the credentials."""
    sources = [objects.uri(small.path) for small in group.files]
    rows = spark.read.option("mergeSchema", "true").parquet(*sources)
    write_files(rows.coalesce(1), objects.uri(into), ())
    return [DataFile(file.name, file.size) for file in objects.below(into) if is_data(file.name.rpartition("/")[2])]
