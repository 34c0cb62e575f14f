"""Sinks and stores in files: a directory that is missing or read-only, a full disk."""

import os
import subprocess

import duckdb
import pytest

from headrace import sinks, stores
from headrace.errors import ConfigError, HeadraceError, RetriableError
from headrace.testing.sinks import batch, frame


@pytest.mark.parametrize(
    "make", [stores.SQLite, lambda path: sinks.DuckDB(path, table="t").offsets], ids=["SQLite", "DuckDB"]
)
def test_a_store_used_before_it_is_opened_says_so(tmp_path, make):
    with pytest.raises(ConfigError, match="used before open"):
        make(tmp_path / "x.db").load()


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
            assert (target if kind == "SQLite" else target.offsets).load().offsets == {}
        target.commit(batch(1, 0, 3000)) if kind == "SQLite" else target.write(batch(1, 0, 3000), rows)
    if kind == "DuckDB":
        with duckdb.connect(str(place / "x.duckdb")) as connection:
            assert connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone() == (3000, 3000)
    if kind == "Parquet":
        assert spark.read.parquet(str(place / "out")).count() == 3000
