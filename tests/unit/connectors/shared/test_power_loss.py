"""What a commit that returned has on disk, and what a power cut at any moment leaves: whole batches or none."""

import json
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql.types import LongType, StructType

from headrace import sinks
from headrace.connectors.delta import sink as delta
from headrace.connectors.iceberg import sink as iceberg
from headrace.connectors.parquet import directory_layout
from headrace.spark.hadoop_fs import sync_with_parents
from headrace.support import crashpoints
from headrace.support.paths import private_directory
from headrace.types import Batch, Range, TopicPartition
from support.interleaving import Died, die, meanwhile
from support.power_loss import recorded

COLUMNS = StructType().add("id", LongType())


class Rows:
    """Stands for a DataFrame; what executors write of it is below."""

    schema, columns, sparkSession = COLUMNS, ("id",), None

    def drop(self, *names):
        return self


def write_files(rows, place, partition_by=()):
    """As executors do: nothing is synced."""
    folder = Path(place.removeprefix("file://"))
    for kind in ("kind=a", "kind=b") if partition_by else (".",):
        (folder / kind).mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2, 3]}), folder / kind / "part-0.parquet")
    return 6 if partition_by else 3


@pytest.fixture(autouse=True)
def _executors(monkeypatch):
    for module in (directory_layout, delta):
        monkeypatch.setattr(module, "write_files", write_files)
    monkeypatch.setattr("headrace.connectors.shared.partition_columns.check", lambda *_: None)


def batch(number):
    return Batch(number, (Range(TopicPartition("clicks", 0), number * 3, number * 3 + 3),))


def parquet_batches(tree, root):
    """The files of each visible batch; AssertionError for a file that lost its bytes."""
    found = {}
    for path, data in tree.items():
        if path.startswith(f"{root}/headrace_batch="):
            name, _, file = path.removeprefix(f"{root}/").partition("/")
            found.setdefault(name, set())
            if file.endswith(".parquet"):
                assert data, f"{path} lost its bytes"
                found[name].add(file)
    return found


@pytest.mark.parametrize("partition_by", [None, "kind"])
def test_a_power_cut_leaves_whole_batches_of_parquet_and_all_that_returned(tmp_path, partition_by):
    files = {"kind=a/part-0.parquet", "kind=b/part-0.parquet"} if partition_by else {"part-0.parquet"}
    with recorded(tmp_path) as recorder:
        for number in (1, 2):
            sink = sinks.Parquet(tmp_path / "new" / "lake", partition_by=partition_by)
            with sink.open("clicks") as opened:
                opened.write(batch(number), Rows())
                recorder.note(f"returned {number}")
    returned = 0
    for point in recorder.points:
        returned = int(point.label.split()[1]) if point.label.startswith("returned") else returned
        for tree in point.disks():
            found = parquet_batches(tree, "new/lake")
            assert all(there == files for there in found.values()), (point.label, found)
            assert len(found) >= returned, point.label


def test_a_batch_that_a_dead_run_published_unsynced_is_on_disk_when_its_repeat_returns(tmp_path):
    class Died(Exception):
        pass

    with recorded(tmp_path) as recorder:
        note = recorder.note
        dead = []

        def die(label):
            """Dies with the step that publishes; after that it does nothing more."""
            note(label)
            if dead or label == "parquet: renamed":
                dead.append(label)
                raise Died

        recorder.note = die
        crashpoints.install(die)
        sink = sinks.Parquet(tmp_path / "lake")
        opened = sink.open("clicks")
        with pytest.raises(Died):
            opened.write(batch(1), Rows())
        recorder.note = note
        crashpoints.install(note)
        with sink.open("clicks") as opened:
            opened.write(batch(1), Rows())
        note("returned")
    assert all(len(parquet_batches(tree, "lake")) == 1 for tree in recorder.points[-1].disks())


def delta_versions(tree, root):
    """The versions of the log that are there without a gap, with every file they add."""
    found = []
    for path in sorted(path for path in tree if path.startswith(f"{root}/_delta_log/0") and path.endswith(".json")):
        assert tree[path], f"{path} lost its bytes"
        actions = [json.loads(line) for line in tree[path].splitlines()]
        added = [action["add"]["path"] for action in actions if "add" in action]
        assert all(tree.get(f"{root}/{file}") for file in added), f"{path} names files that are lost"
        found.append(int(path.rpartition("/")[2].removesuffix(".json")))
    return found


def test_a_delta_commit_that_returned_is_on_disk_with_every_version_before_it(tmp_path):
    with recorded(tmp_path) as recorder:
        with sinks.Delta(tmp_path / "new" / "lake").open("clicks") as sink:
            for number in (1, 2):
                sink.prepare(COLUMNS)
                sink.write(batch(number), Rows())
                recorder.note(f"returned {number}")
        with sinks.Delta(tmp_path / "new" / "lake").open("clicks") as sink:
            sink.write(batch(2), Rows())
            recorder.note("returned 2")
    returned = 0
    for point in recorder.points:
        returned = int(point.label.split()[1]) if point.label.startswith("returned") else returned
        if returned:
            for tree in point.disks():
                found = delta_versions(tree, "new/lake") if point.label.startswith("returned") else []
                assert not point.label.startswith("returned") or found == list(range(returned + 1)), point.label


def test_a_delta_commit_of_a_dead_run_is_on_disk_when_its_repeat_returns(tmp_path):
    with recorded(tmp_path) as recorder:
        before_sync = meanwhile("delta: committed", die)
        with sinks.Delta(tmp_path / "lake").open("clicks") as sink, before_sync, pytest.raises(Died):
            sink.write(batch(1), Rows())
        with sinks.Delta(tmp_path / "lake").open("clicks") as sink:
            sink.write(batch(1), Rows())
        recorder.note("returned")
    assert all(delta_versions(tree, "lake") == [0, 1] for tree in recorder.points[-1].disks())


def test_directories_that_are_made_for_offsets_outlive_a_power_cut(tmp_path):
    with recorded(tmp_path) as recorder:
        private_directory(tmp_path / "new" / "deep")
        recorder.note("returned")
    assert all("new/deep/" in tree for tree in recorder.points[-1].disks())


class LocalFolder:
    """What `Folder` is with Spark."""

    def __init__(self, spark, uri):
        self.path = Path(uri.removeprefix("file://"))

    def names(self):
        return [path.name for path in self.path.iterdir()]

    def parquet_files(self):
        return [path.as_uri() for path in self.path.glob("*.parquet")]

    def sync(self):
        sync_with_parents(self.path)


@cache
def iceberg_files(metadata):
    """All files without which the table cannot be read, and how many batches it has."""
    table = StaticTable.from_metadata(metadata)
    snapshot = table.current_snapshot()
    if snapshot is None:
        return [metadata], 0
    rows = [task.file.file_path for task in table.scan().plan_files()]
    manifests = [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
    return [metadata, snapshot.manifest_list, *manifests, *rows], len(rows)


def test_a_power_cut_leaves_the_table_that_the_catalog_of_iceberg_names_with_all_that_returned(tmp_path, monkeypatch):
    """The catalog is a database, which syncs by itself."""
    (tmp_path / "disk").mkdir()
    catalog, warehouse = tmp_path / "catalog.db", tmp_path / "disk" / "new" / "lake"
    properties = {"type": "sql", "uri": f"sqlite:///{catalog}", "warehouse": warehouse.as_uri()}
    for name, stand_in in (("write_files", write_files), ("Folder", LocalFolder)):
        monkeypatch.setattr(iceberg, name, stand_in)
    named = []

    def note(label):
        recorder_note(label)
        with closing(sqlite3.connect(catalog)) as connection:
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone()
            found = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone() if there else None
        named.append(found[0] if found else None)

    with recorded(tmp_path / "disk") as recorder:
        recorder_note, recorder.note = recorder.note, note
        crashpoints.install(note)
        with sinks.Iceberg("web.rows", properties=properties).open("clicks") as sink:
            for number in (1, 2):
                sink.write(batch(number), Rows())
                note(f"returned {number}")
    returned = 0
    for point, metadata in zip(recorder.points, named, strict=True):
        returned = int(point.label.split()[1]) if point.label.startswith("returned") else returned
        if metadata is None:
            continue
        files, batches = iceberg_files(metadata)
        assert batches >= returned, point.label
        for tree in point.disks():
            lost = [file for file in files if not tree.get(file.removeprefix(f"file://{tmp_path}/disk/"))]
            assert not lost, (point.label, lost)
    assert returned == 2
