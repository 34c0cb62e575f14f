"""What the shipped sinks and stores do beyond their contract: refusals a user can act on, files a reader can trust."""

import os
import subprocess
import sys

import duckdb
import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.errors import ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.testing.sinks import batch, frame, numbered


def rows_of(path, table="t"):
    with duckdb.connect(str(path)) as connection:
        return sorted(connection.execute(f"SELECT id, text FROM {table}").fetchall())


# DuckDB


def test_columns_go_by_name_into_a_table_that_is_there(spark, tmp_path):
    path = tmp_path / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (text VARCHAR, more INTEGER DEFAULT 7, id BIGINT)")
    with sinks.DuckDB(path, table="t").open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == [("row 0", 7, 0), ("row 1", 7, 1)]


@pytest.mark.parametrize(
    "there", ["id BIGINT", "id BIGINT, text STRUCT(a INT)", "id BIGINT, text VARCHAR, n INT NOT NULL"]
)
def test_rows_that_do_not_fit_the_table_are_refused_with_both_sides_and_nothing_moves(spark, tmp_path, there):
    path = tmp_path / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t ({there})")
    with sinks.DuckDB(path, table="t").open("clicks") as sink:
        with pytest.raises(ConfigError, match=r"the rows do not fit sinks\.DuckDB") as refused:
            sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        assert "text VARCHAR" in refused.value.message
        assert "id BIGINT" in refused.value.message
        assert sink.load().offsets == {}


def test_a_table_in_a_schema_that_is_there_is_written(spark, tmp_path):
    path = tmp_path / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE SCHEMA sales")
    with sinks.DuckDB(path, table="sales.clicks").open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert rows_of(path, "sales.clicks") == numbered(0, 2)


def test_a_table_in_a_schema_that_is_not_there_is_a_mistake_and_not_retried(spark, tmp_path):
    sink = sinks.DuckDB(tmp_path / "x.duckdb", table="nowhere.clicks").open("clicks")
    with sink, pytest.raises(ConfigError, match="nowhere"):
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))


@pytest.mark.parametrize("table", ["two words", 'say "hi"', "select", "naïve"])
def test_a_table_may_have_an_odd_name(spark, tmp_path, table):
    path = tmp_path / "x.duckdb"
    with sinks.DuckDB(path, table=table).open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    quoted = '"' + table.replace('"', '""') + '"'
    assert rows_of(path, quoted) == numbered(0, 2)


def test_two_pipelines_share_one_file(spark, tmp_path):
    path = tmp_path / "x.duckdb"
    for name in ("one", "other"):
        with sinks.DuckDB(path, table="t").open(name) as sink:
            sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert rows_of(path) == sorted(numbered(0, 2) * 2)


def test_a_file_that_is_no_duckdb_is_a_mistake(tmp_path):
    path = tmp_path / "x.duckdb"
    path.write_text("this is a text file, and a long one at that " * 300)
    with pytest.raises(ConfigError, match="not a valid DuckDB"):
        sinks.DuckDB(path, table="t").open("clicks")
    assert path.read_text().startswith("this is a text file")


def test_a_directory_in_place_of_the_file_is_a_mistake_and_not_retried(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        sinks.DuckDB(tmp_path, table="t").open("clicks")


def test_the_origin_is_never_stored(spark, tmp_path):
    path = tmp_path / "x.duckdb"
    with sinks.DuckDB(path, table="t").open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    with duckdb.connect(str(path)) as connection:
        assert [name for name, *_ in connection.execute("DESCRIBE t").fetchall()] == ["id", "text"]


# Parquet


def published(path):
    return sorted(file.name for file in path.iterdir() if file.name.startswith("headrace_batch="))


def test_a_reader_of_the_folder_sees_no_half_batch_while_one_is_written(spark, tmp_path):
    path = tmp_path / "out"
    with sinks.Parquet(path).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        broken = frame(spark, numbered(3, 9)).selectExpr("IF(id = 8, raise_error('broken'), id) AS id", "text")
        with pytest.raises(Exception, match="broken"):
            sink.write(batch(2, 3, 9), broken)
        assert len(published(path)) == 1
        assert spark.read.parquet(str(path)).count() == 3


def test_spark_and_duckdb_read_the_folder_while_the_pipeline_is_open(spark, tmp_path):
    path = tmp_path / "out"
    with sinks.Parquet(path).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        again = spark.read.parquet(str(path))
        assert sorted(again.columns) == ["headrace_batch", "id", "text"]
        assert sorted((row["id"], row["text"]) for row in again.collect()) == numbered(0, 5)
        found = duckdb.sql(f"SELECT id, text FROM read_parquet('{path}/**/*.parquet')").fetchall()
        assert sorted(found) == numbered(0, 5)


def test_what_a_dead_run_left_aside_is_cleared_and_what_a_live_one_has_is_not(tmp_path):
    path = tmp_path / "out"
    dead = path / "_headrace" / "clicks" / "dead"
    dead.mkdir(parents=True)
    (dead / "part.parquet").write_bytes(b"x")
    with sinks.Parquet(path).open("clicks"):
        assert not dead.exists()
        (live,) = (path / "_headrace" / "clicks").iterdir()
        with sinks.Parquet(path).open("clicks"):
            assert live.exists()
        assert live.exists()


def test_a_file_in_place_of_the_folder_is_a_mistake(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="expected a directory"):
        sinks.Parquet(tmp_path / "out").open("clicks")


def test_rows_that_parquet_cannot_hold_are_a_mistake_and_not_retried(spark, topic, tmp_path):
    where = topic(partitions=1)
    where.produce([{"id": 1}])
    pipeline = hr.Pipeline(
        name="clicks",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id INT")),
        transform=lambda rows: rows.selectExpr("id", "id AS ID"),
        sink=sinks.Parquet(tmp_path / "out"),
        offsets=stores.Memory(),
        guarantee="exactly-once",
    )
    with pytest.raises(ConfigError):
        pipeline.run(until="caught-up", session=spark, fail_fast=True)
    assert published(tmp_path / "out") == []


# Console and Memory


def test_the_console_shows_the_first_rows_of_each_batch(spark, capsys):
    with sinks.Console(limit=2).open("clicks") as sink:
        sink.write(batch(1, 0, 5), frame(spark, numbered(0, 5)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "batch 1: 2 rows shown"
    assert len(lines) == 3
    assert "text='row 0'" in lines[1]
    assert "_kafka" not in lines[1]


# SQLite


def test_a_file_that_is_no_sqlite_is_a_mistake(tmp_path):
    path = tmp_path / "offsets.db"
    path.write_text("this is a text file, and a long one at that " * 300)
    with pytest.raises(ConfigError, match="not a usable SQLite file"):
        stores.SQLite(path).open("clicks")
    assert path.read_text().startswith("this is a text file")


def test_a_directory_in_place_of_the_offsets_is_a_mistake_and_not_retried(tmp_path):
    with pytest.raises(ConfigError, match="cannot be kept in"):
        stores.SQLite(tmp_path).open("clicks")


@pytest.mark.parametrize("make", [stores.SQLite, lambda path: sinks.DuckDB(path, table="t")], ids=["SQLite", "DuckDB"])
def test_a_store_used_before_it_is_opened_says_so(tmp_path, make):
    with pytest.raises(ConfigError, match="used before open"):
        make(tmp_path / "x.db").load()


# places that cannot be written; tests may run as root, who may write nearly everywhere

PLACES = {
    "SQLite": lambda path: stores.SQLite(path / "offsets.db"),
    "DuckDB": lambda path: sinks.DuckDB(path / "x.duckdb", table="t"),
    "Parquet": lambda path: sinks.Parquet(path / "out"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_place_below_a_file_is_a_mistake_that_is_named_with_a_hint(tmp_path, kind):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=str(tmp_path / "file")) as refused:
        PLACES[kind](tmp_path / "file" / "deep").open("clicks")
    assert refused.value.hint


@pytest.fixture
def mounted(tmp_path):
    """Mount a file system of its own for one test; skipped where this user may not."""
    done = []

    def mount(options):
        place = tmp_path / "mounted"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"this user may not mount a file system: {tried.stderr.strip()}")
        done.append(place)
        return place

    yield mount
    for place in done:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("kind", PLACES)
def test_a_read_only_directory_is_a_mistake_that_is_named_with_a_hint(mounted, kind):
    place = mounted("ro,size=1m")
    with pytest.raises(ConfigError, match=str(place)) as refused:
        PLACES[kind](place).open("clicks")
    assert refused.value.hint


def _fill(path):
    """Leave not a byte on the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left"):
            while True:
                os.write(handle, b"x" * 4096)
    finally:
        os.close(handle)


@pytest.mark.parametrize("kind", PLACES)
def test_a_full_disk_is_waited_for_and_named_and_loses_nothing(mounted, spark, kind):
    place = mounted("size=4m")
    full = place / "ballast"
    with PLACES[kind](place).open("clicks") as target:
        _fill(full)
        rows = frame(spark, [(number, f"{number:0200d}") for number in range(3000)])
        with pytest.raises(Exception) as failed:  # Spark's own error is retried as well
            target.commit(batch(1, 0, 3000)) if kind == "SQLite" else target.write(batch(1, 0, 3000), rows)
        assert isinstance(failed.value, RetriableError) or not isinstance(failed.value, HeadraceError)
        if isinstance(failed.value, RetriableError):
            assert str(place) in failed.value.message
            assert failed.value.hint.startswith("df -h ")
    full.unlink()
    with PLACES[kind](place).open("clicks") as target:
        if kind != "Parquet":
            assert target.load().offsets == {}
        target.commit(batch(1, 0, 3000)) if kind == "SQLite" else target.write(batch(1, 0, 3000), rows)
    if kind == "DuckDB":
        with duckdb.connect(str(place / "x.duckdb")) as connection:
            assert connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone() == (3000, 3000)
    if kind == "Parquet":
        assert spark.read.parquet(str(place / "out")).count() == 3000


def test_a_file_that_another_process_has_open_is_a_conflict(tmp_path):
    path = tmp_path / "x.duckdb"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(OffsetConflict, match="another process has") as refused:
            sinks.DuckDB(path, table="t").open("clicks")
        assert refused.value.hint
        holder.communicate("\n", timeout=30)
