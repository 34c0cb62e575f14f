"""What the sinks in SQL databases share: upserts that never go back, schemas that fit, dead letters beside the rows."""

import sqlite3
import uuid
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal

import duckdb
import psycopg
import pytest

from headrace import sinks
from headrace.core.dead_letters import DeadLetter, DeadLetterBatch, RecordId
from headrace.errors import BadRecord, ConfigError
from headrace.types import Batch, Range, TopicPartition

AT = TopicPartition("users", 0)
KAFKA = (
    "_kafka STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP, key: BINARY,"
    " headers: ARRAY<STRUCT<key: STRING, value: BINARY>>, tombstone: BOOLEAN>"
)


class Database:
    """One of the three, and a table of its own in it."""

    def __init__(self, sink, connect, table):
        self._sink, self._connect, self.table = sink, connect, table

    def sink(self, **how):
        return self._sink(self.table, **how)

    def ask(self, query):
        with closing(self._connect()) as connection:
            found = connection.execute(query.format(t=self.table)).fetchall()
            connection.commit()
            return found

    def do(self, *statements):
        with closing(self._connect()) as connection:
            for statement in statements:
                connection.execute(statement.format(t=self.table))
            connection.commit()


@pytest.fixture(params=["postgres", "duckdb", "sqlite"])
def database(request, tmp_path):
    table = f"t_{uuid.uuid4().hex[:12]}"
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres").address
        return Database(lambda t, **how: sinks.Postgres(dsn, t, **how), lambda: psycopg.connect(dsn), table)
    path = tmp_path / "rows.db"
    kind, connect = {
        "duckdb": (sinks.DuckDB, lambda: duckdb.connect(str(path))),
        "sqlite": (sinks.SQLite, lambda: sqlite3.connect(path)),
    }[request.param]
    return Database(lambda t, **how: kind(path, t, **how), connect, table)


@pytest.fixture
def pipeline():
    return f"p-{uuid.uuid4().hex[:8]}"


def batch(number, start, until, at=AT, topic_id="id-1"):
    return Batch(number, (Range(at, start, until),), {at.topic: topic_id})


def users(spark, *rows, partition=0):
    """(offset, name, age): a row of the table; age "gone" is a tombstone, which has nothing but the record's key."""
    made = []
    for offset, name, age in rows:
        gone = age == "gone"
        origin = ("users", partition, offset, None, name.encode(), [], gone)
        made.append((None if gone else name, None if gone else age, origin))
    return spark.createDataFrame(made, f"name STRING, age INT, {KAFKA}")


# Upserts


@pytest.fixture
def keyed(database, pipeline):
    def opened(**how):
        return database.sink(key="name", mode="upsert", create=True, **how).open(pipeline)

    return opened


def test_a_row_takes_the_place_of_the_one_with_its_key(database, keyed, spark):
    with keyed() as sink:
        sink.write(batch(1, 0, 2), users(spark, (0, "ann", 30), (1, "bob", 40)))
        sink.write(batch(2, 2, 3), users(spark, (2, "ann", 31)))
    assert sorted(database.ask("SELECT name, age FROM {t}")) == [("ann", 31), ("bob", 40)]


def test_of_several_rows_with_one_key_in_a_batch_the_newest_counts(database, keyed, spark):
    with keyed() as sink:
        sink.write(batch(1, 0, 3), users(spark, (2, "ann", 32), (0, "ann", 30), (1, "ann", 31)))
    assert database.ask("SELECT name, age FROM {t}") == [("ann", 32)]


def test_a_tombstone_deletes_the_row_with_its_key(database, keyed, spark):
    with keyed() as sink:
        sink.write(batch(1, 0, 2), users(spark, (0, "ann", 30), (1, "bob", 40)))
        sink.write(batch(2, 2, 3), users(spark, (2, "ann", "gone")))
        assert_rows = [("bob", 40)]
    assert database.ask("SELECT name, age FROM {t}") == assert_rows


def test_a_row_and_its_tombstone_in_one_batch_leave_nothing_and_a_row_after_it_stays(database, keyed, spark):
    rows = users(spark, (0, "ann", 30), (1, "ann", "gone"), (2, "bob", 1), (3, "bob", "gone"), (4, "bob", 2))
    with keyed() as sink:
        sink.write(batch(1, 0, 5), rows)
    assert database.ask("SELECT name, age FROM {t}") == [("bob", 2)]


def test_an_older_row_never_takes_the_place_of_a_newer_one(database, keyed, spark, pipeline):
    """The offsets are moved back, as `headrace offsets reset` does, and old records come again."""
    with keyed() as sink:
        sink.write(batch(1, 0, 10), users(spark, (9, "ann", 39)))
        sink.offsets.set_offsets(sink.offsets.load(), {AT: 0}, _change())
        sink.write(batch(2, 0, 5), users(spark, (4, "ann", 34)))
        sink.write(batch(3, 5, 6), users(spark, (5, "ann", "gone")))
    assert database.ask("SELECT name, age FROM {t}") == [("ann", 39)]


def test_a_recreated_topic_starts_over_and_its_rows_count(database, keyed, spark):
    with keyed() as sink:
        sink.write(batch(1, 0, 10), users(spark, (9, "ann", 39)))
        sink.offsets.set_offsets(sink.offsets.load(), {AT: 0}, _change(), {"users": "id-2"})
        sink.write(batch(2, 0, 1, topic_id="id-2"), users(spark, (0, "ann", 1)))
    assert database.ask("SELECT name, age FROM {t}") == [("ann", 1)]


def test_rows_whose_origin_the_transform_dropped_are_upserted_without_the_guard(database, keyed, spark):
    with keyed() as sink:
        sink.write(batch(1, 0, 2), users(spark, (0, "ann", 30), (1, "bob", 40)).drop("_kafka"))
        sink.write(batch(2, 2, 3), users(spark, (2, "ann", 31)).drop("_kafka"))
    assert sorted(database.ask("SELECT name, age FROM {t}")) == [("ann", 31), ("bob", 40)]


def test_a_key_of_several_columns_comes_out_of_the_json_of_a_tombstones_key(database, pipeline, spark):
    schema = f"country STRING, number INT, text STRING, {KAFKA}"
    origin = ("users", 0, 0, None, None, [], False)
    gone = ("users", 0, 1, None, b'{"country": "de", "number": 7}', [], True)
    rows = spark.createDataFrame([("de", 7, "x", origin), ("de", 8, "y", origin)], schema)
    with database.sink(key=["country", "number"], mode="upsert", create=True).open(pipeline) as sink:
        sink.write(batch(1, 0, 1), rows)
        sink.write(batch(2, 1, 2), spark.createDataFrame([(None, None, None, gone)], schema))
    assert database.ask("SELECT country, number, text FROM {t}") == [("de", 8, "y")]


def test_a_delete_aware_sink_deletes_by_a_column_that_says_so(database, pipeline, spark):
    schema = f"name STRING, age INT, gone BOOLEAN, {KAFKA}"

    def row(offset, name, age, gone):
        return (name, age, gone, ("users", 0, offset, None, None, [], False))

    with database.sink(key="name", mode="delete-aware", deleted="gone", create=True).open(pipeline) as sink:
        first = [row(0, "ann", 1, False), row(1, "bob", 2, None)]
        sink.write(batch(1, 0, 2), spark.createDataFrame(first, schema))
        sink.write(batch(2, 2, 3), spark.createDataFrame([row(2, "ann", 1, True)], schema))
    assert database.ask("SELECT name, age FROM {t}") == [("bob", 2)]
    columns = [name for name, *_ in closing_description(database)]
    assert "gone" not in columns


def closing_description(database):
    with closing(database._connect()) as connection:
        return connection.execute(f"SELECT * FROM {database.table} WHERE 1 = 0").description


def test_a_table_without_a_unique_key_is_refused_with_the_cure(database, pipeline, spark):
    database.do("CREATE TABLE {t} (name TEXT, age INTEGER, headrace_origin TEXT, headrace_offset BIGINT)")
    with database.sink(key="name", mode="upsert").open(pipeline) as sink:
        with pytest.raises(ConfigError) as refused:
            sink.write(batch(1, 0, 1), users(spark, (0, "ann", 1)))
        assert "name" in refused.value.hint
        assert sink.offsets.load().offsets == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "upsert"}, "expected the columns of the key"),
        ({"mode": "replace"}, "mode: expected one of"),
        ({"key": "name"}, "expected no key"),
        ({"mode": "upsert", "key": ""}, "expected the columns of the key"),
    ],
)
def test_a_mode_that_makes_no_sense_is_refused_when_it_is_written_down(database, arguments, message):
    with pytest.raises(ConfigError, match=message):
        database.sink(**arguments)


def test_a_key_that_is_not_among_the_columns_is_refused(database, pipeline, spark):
    with (
        database.sink(key="id", mode="upsert", create=True).open(pipeline) as sink,
        pytest.raises(ConfigError, match="no column id"),
    ):
        sink.prepare(users(spark).schema)


def test_a_row_without_its_key_is_a_bad_record_and_nobody_makes_one_up(database, pipeline, spark):
    rows = spark.createDataFrame([(None, "x")], "id BIGINT, text STRING")
    with database.sink(key="id", mode="upsert", create=True).open(pipeline) as sink:
        sink.prepare(rows.schema)
        with pytest.raises(BadRecord):
            sink.write(batch(1, 0, 1), rows)
        assert sink.offsets.load().offsets == {}
    assert database.ask("SELECT * FROM {t}") == []


def test_a_column_with_a_name_of_ours_is_refused(database, pipeline, spark):
    rows = spark.createDataFrame([("a", 1)], "name STRING, headrace_rank INT")
    sink = database.sink(key="name", mode="upsert", create=True).open(pipeline)
    with sink, pytest.raises(ConfigError, match="headrace_rank"):
        sink.prepare(rows.schema)


def test_a_batch_without_rows_moves_the_offsets_in_every_mode(database, keyed, spark):
    with keyed() as sink:
        sink.write(batch(1, 0, 3), users(spark))
        sink.write_with_dead_letters(batch(2, 3, 5), users(spark), dead_letter_batch(f"{database.table}_dead"))
        assert sink.offsets.load().offsets == {AT: 5}


# Schemas


def test_a_table_that_is_not_there_is_refused_unless_it_may_be_created(database, pipeline, spark):
    with database.sink(create=False).open(pipeline) as sink, pytest.raises(ConfigError, match="no such table") as no:
        sink.prepare(users(spark).schema)
    assert "create=True" in no.value.hint
    assert "CREATE TABLE" in no.value.hint


def test_a_column_that_the_table_lacks_is_refused_before_anything_is_read_with_both_sides(database, pipeline, spark):
    database.do("CREATE TABLE {t} (name TEXT)")
    with database.sink().open(pipeline) as sink, pytest.raises(ConfigError, match="no column age") as refused:
        sink.prepare(users(spark).schema)
    assert "rows: name" in refused.value.message
    assert "table: name" in refused.value.message
    assert "evolve=True" in refused.value.hint


def test_a_column_that_the_table_lacks_is_added_if_configured(database, pipeline, spark):
    database.do("CREATE TABLE {t} (name TEXT)", "INSERT INTO {t} VALUES ('old')")
    with database.sink(evolve=True).open(pipeline) as sink:
        sink.prepare(users(spark).schema)
        sink.write(batch(1, 0, 1), users(spark, (0, "ann", 1)))
    assert database.ask("SELECT name, age FROM {t} ORDER BY name") == [("ann", 1), ("old", None)]


def test_a_column_that_the_table_requires_is_missed(database, pipeline, spark):
    database.do("CREATE TABLE {t} (name TEXT, age INTEGER, mail TEXT NOT NULL)")
    with database.sink().open(pipeline) as sink, pytest.raises(ConfigError, match="mail, which the table requires"):
        sink.prepare(users(spark).schema)


def test_columns_that_the_table_fills_by_itself_may_be_missing(database, pipeline, spark):
    database.do("CREATE TABLE {t} (age INTEGER, more INTEGER NOT NULL DEFAULT 7, name TEXT)")
    with database.sink().open(pipeline) as sink:
        sink.prepare(users(spark).schema)
        sink.write(batch(1, 0, 1), users(spark, (0, "ann", 1)))
    assert database.ask("SELECT * FROM {t}") == [(1, 7, "ann")]


def test_odd_names_are_quoted(database, pipeline, spark):
    odd = ['a "quote"', "two words", "SELECT", "naïve", "semi;colon", "a.b"]
    rows = spark.createDataFrame([tuple(range(len(odd)))], ", ".join(f"`{name}` INT" for name in odd))
    with database.sink(create=True).open(pipeline) as sink:
        sink.write(batch(1, 0, 1), rows)
    assert database.ask("SELECT * FROM {t}") == [tuple(range(len(odd)))]


# Types: those of PostgreSQL have a test of their own


TYPES = """SELECT true AS bool, -5 AS n, 1.5D AS d, -12345678901234567890.123456789012345678BD AS dec, 'é 😀' AS text,
    X'00FF' AS raw, DATE'2024-02-29' AS day, TIMESTAMP'2024-03-31 01:30:00.5 UTC' AS at,
    TIMESTAMP_NTZ'2024-03-31 02:30:00' AS wall, array(1, NULL) AS list, named_struct('a', 1, 'b', 'x') AS st"""


def test_what_sqlite_has_no_type_for_is_text(tmp_path, pipeline, spark):
    with sinks.SQLite(tmp_path / "x.db", "t").open(pipeline) as sink:
        sink.write(batch(1, 0, 1), spark.sql(TYPES))
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        (row,) = connection.execute("SELECT * FROM t").fetchall()
    assert row[:6] == (1, -5, 1.5, "-12345678901234567890.123456789012345678", "é 😀", b"\x00\xff")
    assert row[6:9] == ("2024-02-29", "2024-03-31 01:30:00.5Z", "2024-03-31 02:30:00")
    assert row[9:] == ("[1,null]", '{"a":1,"b":"x"}')


def test_duckdb_has_a_type_foreverything(tmp_path, pipeline, spark):
    with sinks.DuckDB(tmp_path / "x.db", "t").open(pipeline) as sink:
        sink.write(batch(1, 0, 1), spark.sql(TYPES))
    with duckdb.connect(str(tmp_path / "x.db")) as connection:
        kinds = dict(row[:2] for row in connection.execute("DESCRIBE t").fetchall())
        (row,) = connection.execute('SELECT * EXCLUDE ("at"), epoch_ms("at") FROM t').fetchall()
    assert (kinds["dec"], kinds["at"], kinds["wall"]) == ("DECIMAL(38,18)", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP")
    assert row[:6] == (True, -5, 1.5, Decimal("-12345678901234567890.123456789012345678"), "é 😀", b"\x00\xff")
    assert row[6:8] == (date(2024, 2, 29), datetime(2024, 3, 31, 2, 30))
    assert row[8:10] == ([1, None], {"a": 1, "b": "x"})
    assert row[10] == 1711848600500


# Dead letters


def dead_letter_batch(table, *letters, limit=10):
    def originals(refused):
        return [
            DeadLetter(r.origin, None, b"k", f"value {r.origin.offset}".encode(), (("h", b"\xff"),), r.error, r.place)
            for r in refused
        ]

    return DeadLetterBatch(letters, limit=limit, fetch_records=originals, table=table)


def constrained(database):
    database.do("CREATE TABLE {t} (name TEXT NOT NULL, age INTEGER CHECK (age < 100))")


def test_rows_that_the_table_refuses_go_to_the_dead_letters_and_the_others_are_stored(database, pipeline, spark):
    constrained(database)
    rows = users(spark, *((n, f"u{n}", 100 if n in (3, 11) else n) for n in range(20)))
    dead = f"{database.table}_dead"
    with database.sink().open(pipeline) as sink:
        found = dead_letter_batch(dead)
        sink.write_with_dead_letters(batch(1, 0, 20), rows, found)
        assert found.count == 2
        letters = sink.read_dead_letters(dead)
        assert [(letter.origin, letter.key, letter.value, letter.headers) for letter in letters] == [
            (RecordId("users", 0, n), b"k", f"value {n}".encode(), (("h", b"\xff"),)) for n in (3, 11)
        ]
        assert all("check" in letter.error.lower() and letter.place == f"table {database.table}" for letter in letters)
        assert sink.offsets.load().offsets == {AT: 20}
        sink.drop_dead_letters(dead, [letters[0].origin])
        assert [letter.origin.offset for letter in sink.read_dead_letters(dead)] == [11]
    stored = [n for (n,) in database.ask("SELECT age FROM {t} ORDER BY age")]
    assert stored == [n for n in range(20) if n not in (3, 11)]


def test_upserted_rows_that_the_table_refuses_go_to_the_dead_letters_and_deletes_need_no_values(
    database, pipeline, spark
):
    database.do(
        "CREATE TABLE {t} (name TEXT PRIMARY KEY, age INTEGER NOT NULL CHECK (age < 100), headrace_origin TEXT,"
        " headrace_offset BIGINT)",
    )
    dead = f"{database.table}_dead"
    rows = users(spark, (0, "ann", 1), (1, "bob", 100), (2, "cyd", None), (3, "ann", "gone"), (4, "dan", 4))
    with database.sink(key="name", mode="upsert").open(pipeline) as sink:
        sink.write_with_dead_letters(batch(1, 0, 5), rows, dead_letter_batch(dead))
        assert [letter.origin.offset for letter in sink.read_dead_letters(dead)] == [1, 2]
    assert database.ask("SELECT name, age FROM {t}") == [("dan", 4)]


def test_records_that_did_not_parse_are_stored_with_the_rows(database, pipeline, spark):
    dead = f"{database.table}_dead"
    bad = DeadLetter(RecordId("users", 0, 1), None, None, b"{broken", (), "not JSON", "decoding")
    with database.sink(create=True).open(pipeline) as sink:
        sink.write_with_dead_letters(batch(1, 0, 2), users(spark, (0, "ann", 1)), dead_letter_batch(dead, bad))
        assert list(sink.read_dead_letters(dead)) == [bad]
    assert database.ask("SELECT name FROM {t}") == [("ann",)]


def test_more_refused_rows_than_the_limit_stop_the_pipeline_with_nothing_stored(database, pipeline, spark):
    constrained(database)
    rows = users(spark, *((n, f"u{n}", 100) for n in range(8)))
    with database.sink().open(pipeline) as sink:
        with pytest.raises(BadRecord, match="at most 3 dead letters"):
            sink.write_with_dead_letters(batch(1, 0, 8), rows, dead_letter_batch(f"{database.table}_dead", limit=3))
        assert sink.offsets.load().offsets == {}
        assert list(sink.read_dead_letters(f"{database.table}_dead")) == []
    assert database.ask("SELECT * FROM {t}") == []


def test_a_refused_row_without_a_place_for_it_is_a_bad_record_and_nothing_moves(database, pipeline, spark):
    constrained(database)
    with database.sink().open(pipeline) as sink:
        with pytest.raises(BadRecord, match="rejects a row") as bad:
            sink.write(batch(1, 0, 2), users(spark, (0, "ann", 1), (1, "bob", 100)))
        assert "dead_letters" in bad.value.hint
        assert sink.offsets.load().offsets == {}
    assert database.ask("SELECT * FROM {t}") == []


def test_a_row_that_is_there_already_is_refused_with_the_mode_that_would_do(database, pipeline, spark):
    database.do("CREATE TABLE {t} (name TEXT PRIMARY KEY, age INTEGER)", "INSERT INTO {t} VALUES ('ann', 1)")
    with database.sink().open(pipeline) as sink:
        with pytest.raises(ConfigError, match="already has a row") as refused:
            sink.write(batch(1, 0, 1), users(spark, (0, "ann", 2)))
        assert "upsert" in refused.value.hint
        assert sink.offsets.load().offsets == {}


def _change():
    from headrace.core.state import AuditEntry

    return AuditEntry(0.0, "a test", "reset")
