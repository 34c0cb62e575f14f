"""Tables of Headrace's own in SQLite: those of the first format are read, upgraded by steps, or refused if newer."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headrace import stores
from headrace.connectors.sql import offset_tables
from headrace.connectors.sql.own_tables import OwnTable
from headrace.connectors.sqlite.effect_marks import SQLiteEffectLog
from headrace.connectors.sqlite.offset_store import ensure_tables
from headrace.core.state import RunLease
from headrace.errors import ConfigError
from headrace.types import Batch, Range, TopicPartition

FIRST_FORMAT = Path(__file__).parents[3] / "stored" / "format_1" / "sqlite.sql"
FIRST, SECOND = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
PENDING = Batch(8, (Range(FIRST, 120, 150), Range(SECOND, 95, 97)), {"clicks": "q1Zz0b3WTm2u0w"}, epoch=1)
OLD = OwnTable("headrace_things", "CREATE TABLE headrace_things (id INTEGER PRIMARY KEY)")
NEW = OwnTable(
    "headrace_things",
    "CREATE TABLE headrace_things (id INTEGER PRIMARY KEY, label TEXT NOT NULL DEFAULT '', size INTEGER)",
    (
        "ALTER TABLE headrace_things ADD COLUMN label TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE headrace_things ADD COLUMN size INTEGER",
    ),
)


def columns(connection):
    return [name for _, name, *_ in connection.execute("PRAGMA table_info(headrace_things)")]


def formats(connection):
    return dict(connection.execute("SELECT table_name, format FROM headrace_formats"))


@pytest.fixture
def first_format(tmp_path):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(FIRST_FORMAT.read_text())
    connection.close()
    return path


@pytest.fixture
def connection(tmp_path):
    made = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    yield made
    made.close()


def test_a_run_goes_on_from_the_tables_of_the_first_format(first_format):
    with stores.SQLite(first_format).open("clicks") as store:
        progress = store.load()
        assert (progress.offsets, progress.pending, progress.last_batch) == ({FIRST: 120, SECOND: 95}, PENDING, 7)
        assert store.lease() == RunLease("host-1", 4711, 1763500000.5, 1763500030.25, "5f0c:4026531836")
        assert [entry.note for entry in store.history()] == ["moved back by 30"]
        store.commit(PENDING)
        assert store.load().offsets == {FIRST: 150, SECOND: 97}


def test_a_user_who_may_not_create_tables_can_use_those_of_the_first_format(first_format):
    with stores.SQLite(first_format).open("clicks") as store, store.reading() as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'headrace_formats'").fetchall()


def test_marks_of_the_first_format_count(first_format):
    log = SQLiteEffectLog(str(first_format), "clicks", 1e9)
    log.prepare()
    client = log.connect()
    assert (client.mark("clicks-0-7"), client.mark("clicks-0-8")) == (False, True)
    client.close()


def test_new_tables_are_recorded_with_their_format(tmp_path):
    with stores.SQLite(tmp_path / "app.db").open("clicks") as store, store.reading() as connection:
        assert formats(connection) == {table.name: 1 for table in offset_tables.TABLES}


def test_a_table_of_an_older_format_is_altered_step_by_step_and_keeps_its_rows(connection):
    connection.execute(OLD.create)  # without a record, as the first format
    connection.execute("INSERT INTO headrace_things VALUES (7)")
    ensure_tables(connection, NEW)
    assert columns(connection) == ["id", "label", "size"]
    assert connection.execute("SELECT * FROM headrace_things").fetchall() == [(7, "", None)]
    assert formats(connection) == {"headrace_things": 3}
    ensure_tables(connection, NEW)  # nothing is left to do
    assert columns(connection) == ["id", "label", "size"]


def test_an_upgrade_that_fails_half_way_changes_nothing(connection):
    connection.execute(OLD.create)
    broken = OwnTable(NEW.name, NEW.create, (NEW.upgrades[0], "ALTER TABLE nowhere ADD COLUMN size INTEGER"))
    with pytest.raises(sqlite3.OperationalError):
        ensure_tables(connection, broken)
    assert columns(connection) == ["id"]


@pytest.mark.parametrize("store", [stores.SQLite, stores.DuckDB])
@pytest.mark.parametrize("table", [table.name for table in offset_tables.TABLES])
def test_a_table_of_a_newer_format_is_refused_by_runs_and_by_readers(tmp_path, table, store):
    path = tmp_path / "app.db"
    with store(path).open("clicks") as opened, opened.transaction() as connection:
        connection.execute("UPDATE headrace_formats SET format = 2 WHERE table_name = ?", [table])
    for kind in ("open", "open_for_reading"):
        with (
            pytest.raises(ConfigError, match=f"table {table} is stored in format 2: expected at most format 1"),
            closing(store(path)) as opened,
        ):
            getattr(opened, kind)("clicks")
