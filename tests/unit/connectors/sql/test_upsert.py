"""Write modes and the SQL that merges rows by key, executed by SQLite in memory."""

import sqlite3

import pytest

from headrace.connectors.sql.upsert import DELETED, OFFSET, ORIGIN, WriteMode
from headrace.core.sink import METADATA
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "mode", "deleted", "message"),
    [
        ("user", "append", "deleted", "expected no key"),
        (None, "upsert", "deleted", "expected the columns of the key"),
        ((), "delete-aware", "deleted", "expected the columns of the key"),
        (("user", ""), "upsert", "deleted", "expected the columns of the key"),
        ("user", "upsert", "gone", 'needs mode="delete-aware"'),
        ("user", "replace", "deleted", "replace"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(key, mode, deleted, message):
    with pytest.raises(ConfigError, match=message):
        WriteMode.of("clicks", key, mode, deleted)


def test_one_column_of_a_key_need_not_be_a_list():
    assert WriteMode.of("clicks", "user", "upsert", "deleted").key == ("user",)


APPEND, UPSERT = WriteMode("clicks"), WriteMode("clicks", "upsert", ("user",))
DELETE_AWARE = WriteMode("clicks", "delete-aware", ("user",))


@pytest.mark.parametrize(
    ("mode", "names", "stored"),
    [
        (APPEND, ["user", METADATA], ["user"]),
        (UPSERT, ["user", "amount"], ["user", "amount"]),
        (DELETE_AWARE, ["user", "deleted"], ["user"]),
        (DELETE_AWARE, ["user", METADATA], ["user"]),
    ],
)
def test_metadata_and_the_deleted_flag_are_not_stored(mode, names, stored):
    assert mode.columns(names) == stored


@pytest.mark.parametrize(
    ("mode", "names", "message"),
    [
        (APPEND, ["user", "headrace_x"], "the column name headrace_x is reserved"),
        (APPEND, ["HEADRACE_X"], "the column name HEADRACE_X is reserved"),
        (UPSERT, ["amount"], "no column user, which is in the key"),
        (DELETE_AWARE, ["user"], "no column deleted"),
    ],
)
def test_columns_that_a_mode_cannot_store_are_refused(mode, names, message):
    with pytest.raises(ConfigError, match=message):
        mode.columns(names)


def merged(existing, staged):
    """The table, as (user, amount, origin, offset), after `staged` rows were merged into it."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE clicks (user TEXT PRIMARY KEY, amount INT, {ORIGIN} TEXT, {OFFSET} INT)")
    connection.execute(f"CREATE TABLE staged (user TEXT, amount INT, {ORIGIN} TEXT, {OFFSET} INT, {DELETED} INT)")
    connection.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", existing)
    connection.executemany("INSERT INTO staged VALUES (?, ?, ?, ?, ?)", staged)
    for statement in DELETE_AWARE.merge_statements("staged", ["user", "amount"]):
        connection.execute(statement)
    return connection.execute("SELECT * FROM clicks ORDER BY user").fetchall()


@pytest.mark.parametrize(
    ("existing", "staged", "stored"),
    [
        ([], [("a", 1, "t:0", 5, 0)], [("a", 1, "t:0", 5)]),
        # Of several rows with one key, the newest is written.
        ([], [("a", 1, "t:0", 5, 0), ("a", 2, "t:0", 6, 0)], [("a", 2, "t:0", 6)]),
        ([], [("a", 2, "t:0", 6, 0), ("a", 1, "t:0", 5, 0)], [("a", 2, "t:0", 6)]),
        ([("a", 1, "t:0", 5)], [("a", 2, "t:0", 6, 0)], [("a", 2, "t:0", 6)]),
        # A replay: the same offset again leaves the same row, an older one changes nothing.
        ([("a", 1, "t:0", 5)], [("a", 1, "t:0", 5, 0)], [("a", 1, "t:0", 5)]),
        ([("a", 2, "t:0", 6)], [("a", 1, "t:0", 5, 0)], [("a", 2, "t:0", 6)]),
        # Offsets of another partition cannot be compared: the later write wins.
        ([("a", 2, "t:0", 6)], [("a", 1, "t:1", 5, 0)], [("a", 1, "t:1", 5)]),
        # A recreated topic has another id.
        ([("a", 2, "t:0", 600)], [("a", 1, "u:0", 5, 0)], [("a", 1, "u:0", 5)]),
        # Rows without an origin are always written.
        ([("a", 2, None, None)], [("a", 1, "t:0", 5, 0)], [("a", 1, "t:0", 5)]),
        ([("a", 2, "t:0", 6)], [("a", 1, None, None, 0)], [("a", 1, None, None)]),
        # Deletes.
        ([("a", 1, "t:0", 5)], [("a", None, "t:0", 6, 1)], []),
        ([("a", 2, "t:0", 6)], [("a", None, "t:0", 5, 1)], [("a", 2, "t:0", 6)]),
        ([("a", 1, "t:0", 5)], [("a", None, "t:0", 6, 1), ("a", 3, "t:0", 7, 0)], [("a", 3, "t:0", 7)]),
        ([], [("a", 3, "t:0", 7, 0), ("a", None, "t:0", 8, 1)], []),
        ([("b", 1, "t:0", 1)], [("a", None, "t:0", 6, 1)], [("b", 1, "t:0", 1)]),
    ],
)
def test_the_newest_row_of_a_key_is_stored(existing, staged, stored):
    assert merged(existing, staged) == stored


def test_rows_without_a_key_are_appended():
    assert APPEND.merge_statements("staged", ["user"]) == [
        'INSERT INTO "clicks" ("user") SELECT "user" FROM staged AS s'
    ]
