"""What `headrace compact` merges, what it remembers of it, and what it refuses."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace import sinks
from headrace.cli import parquet as verbs
from headrace.connectors.delta import compaction
from headrace.connectors.parquet import merged_batches
from headrace.connectors.parquet.compaction import compact
from headrace.errors import ConfigError, RetriableError
from support.power_loss import recorded

# names of merged batches


def test_a_name_is_found_among_very_many_and_others_are_not(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert not merged_batches.contains(first, "clicks-0")
    merged_batches.write(first, tmp_path / "none", [f"clicks-{number}" for number in range(0, 1000, 2)])
    merged_batches.write(second, first, ["clicks-1", "clicks-3"])
    assert [number for number in range(1000) if merged_batches.contains(second, f"clicks-{number}")] == sorted(
        {*range(0, 1000, 2), 1, 3}
    )


@pytest.mark.parametrize(
    ("text", "size"), [("128MB", 128_000_000), ("1.5 GiB", 1_610_612_736), ("500", 500), ("7kb", 7000), ("12B", 12)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert verbs.size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "0", "-1MB", "1XB", "ten"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="expected a size"):
        verbs.size(text)


# what is refused


@pytest.fixture
def former(tmp_path):
    """A dataset as it was written before batches were directories everywhere."""
    rows = tmp_path / "data" / "headrace_batch=clicks-0123-89ab" / "part-0.parquet"
    rows.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), rows)
    manifest = tmp_path / "_headrace" / "manifests" / "clicks-0123.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"format": 1, "name": "clicks-0123", "files": [{"path": "…", "size": 1}]}))
    return tmp_path


@pytest.mark.parametrize(
    "use",
    [
        lambda path: sinks.Parquet(path).open("clicks"),
        lambda path: sinks.Parquet(path).check_reachable(),
        lambda path: sinks.Parquet(path).files(),
        lambda path: compact(path, target=1000, execute=True),
    ],
    ids=["run", "check", "files", "compact"],
)
@pytest.mark.parametrize("left", ["all", "manifests", "data"])
def test_a_dataset_with_manifests_is_refused_by_everything_that_would_pass_over_its_rows(former, use, left):
    for name in {"manifests": ["data"], "data": ["_headrace"]}.get(left, []):
        shutil.rmtree(former / name)
    before = sorted(former.rglob("*"))
    with pytest.raises(ConfigError, match="holds a dataset with manifests, a layout that is no longer") as refused:
        use(former)
    assert "choose another path" in refused.value.hint
    assert sorted(former.rglob("*")) == before


def test_a_directory_with_nothing_to_compact_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"neither batches of sinks\.Parquet nor a Delta table"):
        compact(tmp_path, target=1000, execute=True)


def test_parquet_on_hdfs_has_no_list_of_files():
    with pytest.raises(ConfigError, match=r"files\(\) is for local paths") as refused:
        sinks.Parquet("hdfs://nn:8020/clicks").files()
    assert refused.value.hint == "spark.read.parquet('hdfs://nn:8020/clicks')"


def test_a_uri_without_a_delta_table_is_refused_with_what_can_be_compacted():
    with pytest.raises(ConfigError, match="there is no Delta table at unheard://") as refused:
        compaction.compact("unheard://nowhere", target=1000, execute=True)
    assert "local disks only" in refused.value.hint


# a power cut


def test_a_power_cut_at_any_moment_of_a_compaction_leaves_every_row_once(tmp_path):
    for number in range(3):
        place = tmp_path / "rows" / f"headrace_batch=clicks-{number}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), place / "part.parquet")
    with recorded(tmp_path) as recorder:
        compact(tmp_path / "rows", target=1_000_000, execute=True)
        recorder.note("returned")
    for point in recorder.points:
        for tree in point.disks():
            files = [data for path, data in tree.items() if re.match(r"rows/headrace_batch=.*\.parquet$", path)]
            assert all(files), point.label
            found = [row for data in files for row in pq.read_table(pa.BufferReader(data))["id"].to_pylist()]
            assert sorted(found) == [0, 1, 2], point.label


# Delta


def delta(path, batches=6, **options):
    for number in range(batches):
        rows = pa.table({"id": [2 * number, 2 * number + 1], "kind": ["a", "b/ é"]})
        write_deltalake(path, rows, mode="append", **options)
    return DeltaTable(path)


def ids(path):
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def test_small_files_of_a_delta_table_are_merged_by_partition_and_its_rows_stay(tmp_path):
    delta(tmp_path, partition_by=["kind"])
    shown = compaction.compact(str(tmp_path), target=1_000_000, execute=False)
    assert [(merge.partition, len(merge.files)) for merge in shown.merges] == [("kind=a", 6), ("kind=b/ é", 6)]
    assert (shown.files, shown.into) == (12, 2)
    assert len(DeltaTable(tmp_path).file_uris()) == 12
    done = compaction.compact(str(tmp_path), target=1_000_000, execute=True)
    assert (done.layout, done.files, done.into) == ("delta", 12, 2)
    assert len(DeltaTable(tmp_path).file_uris()) == 2
    assert ids(tmp_path) == list(range(12))
    assert compaction.compact(str(tmp_path), target=1_000_000, execute=True).merges == ()


def test_files_of_a_delta_table_of_which_no_two_fit_into_one_are_left(tmp_path):
    table = delta(tmp_path, batches=3)
    size = min(table.get_add_actions(flatten=True).column("size_bytes").to_pylist())
    assert compaction.compact(str(tmp_path), target=size + 10, execute=True).merges == ()
    assert len(DeltaTable(tmp_path).file_uris()) == 3


def test_a_compaction_of_a_delta_table_that_returned_outlives_a_power_cut(tmp_path):
    delta(tmp_path / "rows", partition_by=["kind"])
    with recorded(tmp_path) as recorder:
        compaction.compact(str(tmp_path / "rows"), target=1_000_000, execute=True)
        recorder.note("returned")
    for number, tree in enumerate(recorder.points[-1].disks()):
        disk = tmp_path / f"disk {number}"
        for path, data in tree.items():
            (disk / path).parent.mkdir(parents=True, exist_ok=True)
            if not path.endswith("/"):
                (disk / path).write_bytes(data)
        assert len(DeltaTable(disk / "rows").file_uris()) == 2
        assert ids(disk / "rows") == list(range(12))


def test_rows_that_are_deleted_while_a_delta_table_is_compacted_do_not_come_back(tmp_path):
    delta(tmp_path)
    with pytest.raises(RetriableError) as failed:
        compaction.compact(
            str(tmp_path),
            target=1_000_000,
            execute=True,
            on_progress=lambda line: DeltaTable(tmp_path).delete("id = 3"),
        )
    assert "run it again" in failed.value.hint
    assert ids(tmp_path) == [number for number in range(12) if number != 3]


def test_rows_that_are_appended_while_a_delta_table_is_compacted_stay(tmp_path):
    delta(tmp_path)
    rows = pa.table({"id": [12], "kind": ["a"]})
    compacted = compaction.compact(
        str(tmp_path),
        target=1_000_000,
        execute=True,
        on_progress=lambda line: write_deltalake(tmp_path, rows, mode="append"),
    )
    assert compacted.files == 6
    assert ids(tmp_path) == list(range(13))


def test_files_that_another_compaction_replaced_before_ours_had_the_lock_are_not_merged_again(tmp_path, monkeypatch):
    delta(tmp_path)
    lock = compaction.try_lock

    def late(directory):
        DeltaTable(tmp_path).optimize.compact()
        return lock(directory)

    monkeypatch.setattr(compaction, "try_lock", late)
    assert compaction.compact(str(tmp_path), target=1_000_000, execute=True).merges == ()
    assert ids(tmp_path) == list(range(12))


def test_two_compactions_of_a_delta_table_do_not_run_at_once(tmp_path):
    """deltalake would let both commit, and each row would be there twice."""
    delta(tmp_path)

    def again(line):
        with pytest.raises(ConfigError, match="is being compacted already"):
            compaction.compact(str(tmp_path), target=1_000_000, execute=True)

    compaction.compact(str(tmp_path), target=1_000_000, execute=True, on_progress=again)
    assert ids(tmp_path) == list(range(12))


def test_the_command_tells_what_became_of_a_delta_table(tmp_path, capsys):
    delta(tmp_path)
    verbs.compact(str(tmp_path), execute=True)
    output = capsys.readouterr().out
    assert "6 files merged, into 1" in output
    assert "a vacuum removes them" in output
