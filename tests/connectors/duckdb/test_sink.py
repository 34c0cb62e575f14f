"""The DuckDB sink beyond its contract: tables, files that it cannot use, two writers."""

import subprocess
import sys

import duckdb
import pytest

from headrace import sinks
from headrace.errors import ConfigError, OffsetConflict
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
        assert sink.offsets.load().offsets == {}


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


# Console and Memory


# SQLite


# places that cannot be written; tests may run as root, who may write nearly everywhere


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
