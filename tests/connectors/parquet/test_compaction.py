"""`headrace compact` and `headrace files`: fewer files, the same rows, at every moment and after every kill."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from decimal import Decimal
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from headrace import sinks
from headrace.cli import parquet as verbs
from headrace.connectors.parquet import atomic_exchange, compaction
from headrace.connectors.parquet.compaction import compact
from headrace.errors import ConfigError, RetriableError
from headrace.testing.sinks import batch, frame, numbered
from support.interleaving import meanwhile


def filled(spark, path, batches=6, **options):
    """A dataset of small batches, three rows each."""
    with sinks.Parquet(path, **options).open("clicks") as sink:
        for number in range(batches):
            rows = frame(spark, numbered(number * 3, number * 3 + 3)).selectExpr("id", "text", "id % 2 AS kind")
            sink.write(batch(number, number * 3, number * 3 + 3), rows.coalesce(1))
    return path


def rows_of(files):
    """(id, text) of files that were listed before; none may be gone."""
    found = []
    for file in files:
        told = pq.read_table(file, columns=["id", "text"], partitioning=None).to_pylist()
        found += [(row["id"], row["text"]) for row in told]
    return sorted(found)


def stored(path):
    return rows_of(sinks.Parquet(path).files())


def compacted(path, target=1_000_000):
    return compact(path, target=target, execute=True)


# merging


def test_rows_stay_and_files_become_few(spark, tmp_path):
    path = filled(spark, tmp_path / "out")
    before = len(sinks.Parquet(path).files())
    plan = compacted(path)
    assert (plan.layout, plan.files, plan.into) == ("parquet", before, 1)
    assert len(sinks.Parquet(path).files()) == 1 < before
    assert stored(path) == numbered(0, 18)
    assert compacted(path).merges == ()


def test_partitions_stay_apart_and_spark_and_duckdb_read_them_as_columns(spark, tmp_path):
    path = filled(spark, tmp_path / "out", partition_by="kind")
    compacted(path)
    files = sinks.Parquet(path).files()
    assert sorted(Path(file).parent.name for file in files) == ["kind=0", "kind=1"]
    again = spark.read.option("basePath", str(path)).parquet(*files)
    assert Counter((r["id"], r["kind"]) for r in again.collect()) == Counter((n, n % 2) for n in range(18))
    found = duckdb.execute("SELECT id, kind FROM read_parquet($1, hive_partitioning=true)", [files]).fetchall()
    assert sorted(found) == [(n, n % 2) for n in range(18)]
    assert stored(path) == numbered(0, 18)


def test_batches_before_and_after_a_compaction_live_together_and_are_compacted_again(spark, tmp_path):
    path = tmp_path / "out"
    for number in range(4):
        with sinks.Parquet(path).open("clicks") as sink:
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
        compacted(path)
    assert len(sinks.Parquet(path).files()) == 1
    assert stored(path) == numbered(0, 4)


@pytest.mark.parametrize("times", [1, 3])
def test_a_replayed_batch_is_recognised_after_it_was_merged_and_all_traces_are_swept(spark, tmp_path, times):
    path = filled(spark, tmp_path / "out")
    for _ in range(times):
        compacted(path)
    filled(spark, path)
    assert stored(path) == numbered(0, 18)
    assert len(sinks.Parquet(path).files()) == 1


def test_a_run_that_is_open_goes_on_across_a_compaction_and_repeats_nothing(spark, tmp_path):
    with sinks.Parquet(tmp_path / "out").open("clicks") as sink:
        for number in range(3):
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
        compacted(tmp_path / "out")
        for number in range(2, 5):
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
    assert stored(tmp_path / "out") == numbered(0, 5)
    assert list((tmp_path / "out" / "_headrace").glob("clicks/*")) == []


def test_columns_that_came_later_are_null_in_rows_from_before(spark, tmp_path):
    with sinks.Parquet(tmp_path / "out").open("clicks") as sink:
        sink.write(batch(1, 0, 1), spark.sql("SELECT 1L AS id, 'a' AS text"))
        sink.write(batch(2, 1, 2), spark.sql("SELECT 'b' AS text, 2.5D AS more, 2L AS id"))
    compacted(tmp_path / "out")
    assert len(sinks.Parquet(tmp_path / "out").files()) == 1
    found = spark.read.parquet(str(tmp_path / "out")).select("id", "text", "more").collect()
    assert sorted(map(tuple, found)) == [(1, "a", None), (2, "b", 2.5)]


def test_rows_whose_types_conflict_are_left_alone(spark, tmp_path):
    with sinks.Parquet(tmp_path / "out").open("clicks") as sink:
        sink.write(batch(1, 0, 1), spark.sql("SELECT 1L AS id"))
        sink.write(batch(2, 1, 2), spark.sql("SELECT 'x' AS id"))
        before = sink.files()
        assert compacted(tmp_path / "out").merges == ()
        assert sink.files() == before


def test_every_type_is_after_a_merge_what_it_was(spark, tmp_path):
    one = spark.sql(
        "SELECT TRUE AS a, 1Y AS b, 2S AS c, 3 AS d, 4L AS e, 1.5F AS f, 2.5D AS g, 12.34BD AS h,"
        " CAST(1 AS DECIMAL(38, 10)) AS i, 'text' AS j, X'00FF' AS k, DATE '2026-11-01' AS l,"
        " TIMESTAMP '2026-11-01 12:00:00.123456Z' AS m, TIMESTAMP_NTZ '2026-11-01 12:00:00.5' AS n,"
        " ARRAY(1, NULL) AS o, MAP('a', 1L) AS p, STRUCT(1 AS x, ARRAY('y') AS y) AS q, CAST(NULL AS STRING) AS r"
    )
    with sinks.Parquet(tmp_path / "out").open("clicks") as sink:
        for number in range(2):
            sink.write(batch(number, number, number + 1), one)
        before = spark.read.parquet(*sink.files())
        schema, rows = before.schema, before.collect()
        compacted(tmp_path / "out")
        (file,) = sink.files()
    assert spark.read.parquet(file).schema == schema
    assert spark.read.parquet(file).collect() == rows
    assert rows[0]["h"] == Decimal("12.34")


def test_old_timestamps_stay_moments(spark, tmp_path):
    path = tmp_path / "out"
    for number in range(2):  # as earlier versions wrote them
        place = str(path / f"headrace_batch=clicks-{number}")
        spark.sql("SELECT TIMESTAMP '2026-11-01 12:00:00.123456Z' AS moment").write.parquet(place)
    before = spark.read.parquet(str(path)).select("moment").collect()
    assert len(compacted(path).merges) == 1
    again = spark.read.parquet(str(path)).select("moment")
    assert again.dtypes == [("moment", "timestamp")]
    assert again.collect() == before


def test_what_arrow_would_change_is_left_alone(spark, tmp_path):
    with sinks.Parquet(tmp_path / "out").open("clicks") as sink:
        for number in range(2):
            rows = spark.sql("""SELECT PARSE_JSON('{"a": 1}') AS v, 1 AS variant""")
            sink.write(batch(number, number, number + 1), rows)
        assert compacted(tmp_path / "out").merges == ()
        assert dict(spark.read.parquet(*sink.files()).dtypes)["v"] == "variant"


def test_foreign_files_modes_and_links_in_the_folder_stay(spark, tmp_path):
    path = filled(spark, tmp_path / "out")
    (path / "README").write_text("ours")
    (path / "newest").symlink_to("README")
    path.chmod(0o750)
    compacted(path)
    assert (path / "README").read_text() == "ours"
    assert (path / "newest").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o750
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_symbolic_link_to_the_dataset_is_followed(spark, tmp_path):
    path = filled(spark, tmp_path / "out")
    (tmp_path / "link").symlink_to("out")
    compacted(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert stored(path) == numbered(0, 18)


# beside live pipelines and readers


def test_a_reader_sees_every_row_once_while_batches_come_and_compactions_run(spark, tmp_path):
    path, done, seen, failed = tmp_path / "out", threading.Event(), [], []
    published = threading.Semaphore(0)

    def read():
        while not done.is_set():
            try:
                seen.append(stored(path))
            except FileNotFoundError:
                continue  # exchanged between listing and reading: an error and never other rows; the reader repeats

    def merge():
        while not done.is_set():
            published.acquire(timeout=1)
            try:
                compacted(path)
            except ConfigError as error:
                failed.append(error)

    with sinks.Parquet(path).open("clicks") as sink:
        sink.write(batch(0, 0, 1), frame(spark, numbered(0, 1)))
        threads = [threading.Thread(target=read), threading.Thread(target=merge)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 15):
                sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
                published.release()
        finally:
            done.set()
            for thread in threads:
                thread.join(60)
    assert not failed
    # Whole batches, in the order they were published.
    assert all(rows == numbered(0, len(rows)) for rows in seen), [rows for rows in seen if len(rows) != rows[-1][0] + 1]
    assert len({len(rows) for rows in seen}) > 3, "the reader was too slow to see anything"
    assert stored(path) == numbered(0, 15)
    assert len(sinks.Parquet(path).files()) < 15


def test_two_compactions_do_not_run_at_once(spark, tmp_path):
    path = filled(spark, tmp_path / "out")
    with compaction.compaction_lock(path), pytest.raises(ConfigError, match="compacted already"):
        compacted(path)
    assert stored(path) == numbered(0, 18)


def test_a_file_system_that_cannot_exchange_is_named(spark, tmp_path, monkeypatch):
    path = filled(spark, tmp_path / "out")

    def refuse(*_):
        raise OSError(atomic_exchange.errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(atomic_exchange, "exchange", refuse)
    with pytest.raises(ConfigError, match="cannot exchange two directories") as refused:
        compacted(path)
    assert "Delta" in refused.value.hint
    assert stored(path) == numbered(0, 18)


def test_a_batch_removed_by_hand_during_a_merge_does_not_come_back(spark, tmp_path):
    import shutil

    path = filled(spark, tmp_path / "out")
    remove = partial(shutil.rmtree, next(path.glob("headrace_batch=*")))
    with meanwhile("compact: merged", remove), pytest.raises(Exception, match="was removed while it was merged"):
        compacted(path)
    assert len(stored(path)) == 15


# kills

_DYING = """
import os, signal, sys
from pathlib import Path
from headrace.support import crashpoints
from headrace.connectors.parquet.compaction import compact

def hook(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    print(point, flush=True)

crashpoints.install(hook)
compact(Path(sys.argv[1]), target=1_000_000, execute=True)
"""


def dying(path, point):
    command = [sys.executable, "-c", _DYING, str(path), point]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_compaction_killed_at_every_point_leaves_the_same_rows(spark, tmp_path):
    survived = dying(filled(spark, tmp_path / "whole"), "none")
    assert survived.returncode == 0, survived.stderr
    points = survived.stdout.splitlines()
    assert len(points) >= 4
    path, rows = tmp_path / "out", 0
    for point in points:
        # More batches before each death, so that each has something to merge.
        with sinks.Parquet(path).open("clicks") as sink:
            for _ in range(2):
                sink.write(batch(rows, rows, rows + 1), frame(spark, numbered(rows, rows + 1)))
                rows += 1
        died = dying(path, point)
        assert died.returncode == -signal.SIGKILL, (point, died.stdout, died.stderr)
        assert stored(path) == numbered(0, rows), point
    for number in range(rows):  # every batch once more, as after a crash
        with sinks.Parquet(path).open("clicks") as sink:
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
    assert stored(path) == numbered(0, rows)
    assert dying(path, "none").returncode == 0
    assert stored(path) == numbered(0, rows)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


# the verbs


@pytest.fixture
def command():
    app = typer.Typer()
    app.command()(verbs.files)
    app.command()(verbs.compact)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_the_verbs_show_do_and_list(spark, tmp_path, command):
    path = filled(spark, tmp_path / "out")
    before = sinks.Parquet(path).files()
    shown = command("compact", path)
    assert "6 files to merge, into 1" in shown.output
    assert json.loads(command("compact", path, "--json").stdout)["executed"] is False
    assert "add --execute" in shown.output
    assert sinks.Parquet(path).files() == before
    done = command("compact", path, "--execute", "--target-size", "1MB", "--json")
    assert json.loads(done.stdout)["executed"]
    listed = command("files", path).stdout.splitlines()
    assert listed == sinks.Parquet(path).files() == json.loads(command("files", path, "--json").stdout)
    assert rows_of(listed) == numbered(0, 18)
    assert command("compact", path).output.strip() == "nothing to merge"


def test_a_disk_that_fills_up_during_a_compaction_changes_nothing(spark, tmp_path, monkeypatch):
    path = filled(spark, tmp_path / "out")

    def full(*_):
        raise OSError(28, "No space left on device", "part-00001.parquet")

    monkeypatch.setattr(compaction, "merge", full)
    with pytest.raises(RetriableError, match="No space left") as failed:
        compacted(path)
    assert failed.value.hint == f"df -h {path}"
    monkeypatch.undo()
    assert stored(path) == numbered(0, 18)
    assert len(compacted(path).merges) == 1


def test_many_files_are_merged_in_the_order_of_their_names(tmp_path):
    for number in range(50):
        place = tmp_path / "out" / f"headrace_batch=clicks-{number:03}"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number], "text": [f"row {number}"]}), place / "part.parquet")
    compacted(tmp_path / "out")
    (file,) = sinks.Parquet(tmp_path / "out").files()
    assert pq.read_table(file, partitioning=None)["id"].to_pylist() == list(range(50))
