"""What the JDBC sink does beyond its contract, on PostgreSQL and on Derby, the database that ships with Spark."""

import re
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest
from pyspark.sql.types import StructType

from headrace.connectors.jdbc.connection import Database
from headrace.connectors.jdbc.sink import Jdbc
from headrace.errors import ConfigError, OffsetConflict, RetriableError
from headrace.jars.bundles import Bundle
from headrace.jars.cache import fetch
from headrace.jars.ivy import Artifact
from headrace.testing.sinks import batch, frame, numbered
from support.interleaving import Died, die, meanwhile

DRIVER = Bundle.of("postgresql-jdbc", Artifact("org.postgresql", "postgresql", "42.7.7"))


class Place:
    """A table of its own in a real database, and how it is asked without Headrace."""

    def __init__(self, url, driver, properties=None):
        self.table = f"t_{uuid.uuid4().hex[:12]}"
        self.settings = {"driver": driver, "properties": properties}
        self.database = Database(url, properties or {}, driver)
        self.url = url

    @property
    def schema(self):
        return "APP" if "derby" in self.url else "public"

    def sink(self, **settings):
        return Jdbc(self.url, **{"table": self.table, **self.settings, **settings})

    def make(self, columns="id BIGINT, text VARCHAR(100)"):
        named = re.sub(r"\b(id|text)\b", r'"\1"', columns)
        self.execute(f'CREATE TABLE "{self.table}" ({named})')

    def execute(self, statement):
        with self.database.connected() as connection:
            connection.execute(statement)

    def query(self, statement):
        with self.database.connected() as connection:
            return connection.query(statement)

    def rows(self):
        return Counter(self.query(f'SELECT "id", "text" FROM "{self.table}"'))

    def staged(self):
        with self.database.connected() as connection:
            there = connection.tables("headrace_")
        # Other sinks have tables in the same database.
        return [name for name in there if re.fullmatch("headrace_[0-9a-f]{12}_[0-9a-f]{12}", name.lower())]


@pytest.fixture(scope="session")
def jdbc_postgres(spark, postgres):
    """The driver's jar is added to the running session, as `--spark spark.jars=…` does at its start."""
    for jar in fetch(DRIVER):
        spark.sql(f"ADD JAR '{jar}'")
    url = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres"
    return url, {"user": "postgres", "password": postgres.password}


@pytest.fixture(params=["postgres", "derby"])
def place(request, spark, tmp_path):
    if request.param == "postgres":
        url, properties = request.getfixturevalue("jdbc_postgres")
        return Place(url, "org.postgresql.Driver", properties)
    return Place(f"jdbc:derby:{tmp_path / 'derby'};create=true", "org.apache.derby.iapi.jdbc.AutoloadedDriver")


# Two runs


def test_a_zombie_that_wakes_after_its_successor_wrote_changes_nothing(place, spark):
    place.make()
    with place.sink().open("clicks") as zombie, place.sink().open("clicks") as successor:
        zombie.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        successor.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        successor.write(batch(3, 5, 6), frame(spark, numbered(5, 6)))
        with pytest.raises(OffsetConflict, match=r"batch 2 .* comes too late"):
            zombie.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
    assert place.rows() == Counter(numbered(0, 6))
    assert place.staged() == []


@pytest.mark.parametrize("point", ["jdbc: staging created", "jdbc: rows staged"])
def test_of_two_runs_writing_the_same_batch_at_once_one_wins_and_the_other_agrees(place, spark, point):
    place.make()
    with place.sink().open("clicks") as slow, place.sink().open("clicks") as fast:
        for each in (slow, fast):
            each.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with meanwhile(point, lambda: fast.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))):
            slow.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))
        slow.write(batch(3, 3, 4), frame(spark, numbered(3, 4)))
    assert place.rows() == Counter(numbered(0, 4))


def test_of_two_runs_writing_different_batches_at_once_one_is_refused(place, spark):
    place.make()
    with place.sink().open("clicks") as slow, place.sink().open("clicks") as fast:
        for each in (slow, fast):
            each.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
        with (
            meanwhile("jdbc: rows staged", lambda: fast.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))),
            pytest.raises(OffsetConflict),
        ):
            slow.write(batch(2, 1, 4), frame(spark, numbered(1, 4)))
    assert place.rows() == Counter(numbered(0, 3))
    assert place.staged() == []


def test_a_second_run_waits_at_the_ledger_until_the_first_has_committed(jdbc_postgres, spark):
    """Between the lock and the commit no other transaction comes in: seen from outside, by a lock that is refused."""
    url, properties = jdbc_postgres
    place = Place(url, "org.postgresql.Driver", properties)
    place.make()
    refused = []

    def look():
        with (
            psycopg.connect(url.removeprefix("jdbc:"), **properties) as other,
            pytest.raises(psycopg.Error) as error,
        ):
            target = [f"public.{place.table}"]
            other.execute("SELECT 1 FROM headrace_batches WHERE target = %s FOR UPDATE NOWAIT", target)
        refused.append(error.value.sqlstate)

    with place.sink().open("clicks") as sink, meanwhile("jdbc: rows inserted", look):
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert refused == ["55P03"]


# What is remembered, and what is left


def test_the_newest_batch_is_known_per_pipeline_and_table(place, spark):
    place.make()
    with place.sink().open("clicks") as sink:
        assert sink.last_batch() == 0
        sink.write(batch(7, 0, 3), frame(spark, numbered(0, 3)))
        assert sink.last_batch() == 7
    assert place.sink().open("clicks").last_batch() == 7
    assert place.sink().open("other").last_batch() == 0


def test_a_table_is_the_same_however_it_is_spelled(place, spark):
    place.make()
    rows = frame(spark, numbered(0, 3))
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 3), rows)
    with place.sink(table=f"{place.schema}.{place.table}").open("clicks") as sink:
        assert sink.last_batch() == 1
        sink.write(batch(1, 0, 3), rows)
        sink.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
    assert place.sink().open("clicks").last_batch() == 2
    assert place.rows() == Counter(numbered(0, 5))


@pytest.mark.parametrize("spelled", ["{table}", "{schema}.{table}"])
def test_a_ledger_of_an_earlier_version_is_recognised_and_stays_current(place, spark, spelled):
    """It has the name of the table as the pipeline spelled it; a run of that version may still be alive."""
    place.make()
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    old = spelled.format(table=place.table, schema=place.schema)
    changed = f"UPDATE headrace_batches SET target = '{old}' WHERE target = '{place.schema}.{place.table}'"
    place.execute(changed)
    with place.sink().open("clicks") as sink:
        assert sink.last_batch() == 1
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
    assert place.rows() == Counter(numbered(0, 5))
    ledger = f"SELECT target, batch_id FROM headrace_batches WHERE target LIKE '%{place.table}'"
    assert place.query(ledger) == [(old, 2)]


def test_a_name_is_resolved_along_the_search_path(jdbc_postgres):
    url, properties = jdbc_postgres
    place = Place(f"{url}?currentSchema=first_{uuid.uuid4().hex[:6]},later", "org.postgresql.Driver", properties)
    place.execute("CREATE SCHEMA IF NOT EXISTS later")
    place.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
    for schema in ("later", "elsewhere"):
        place.execute(f'CREATE TABLE {schema}."{place.table}" (id BIGINT)')
    with place.database.connected() as connection:
        assert connection.resolve(place.table) == f"later.{place.table}"
        assert connection.resolve(f"elsewhere.{place.table}") == f"elsewhere.{place.table}"


def test_one_pipeline_fills_two_tables_with_the_same_batch(place, spark):
    place.make()
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    place.table += "_more"
    place.make()
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert place.rows() == Counter(numbered(0, 2))


def test_what_dead_runs_left_goes_with_the_first_batch_of_the_next(place, spark):
    place.make()
    left = []

    def die_and_leave_table():
        """A run that raises drops its staging table; a copy of it is what a killed run would leave."""
        (staging,) = set(place.staged()) - set(left)
        left.append(f"{staging[:-12]}{len(left):012x}")
        place.execute(f'CREATE TABLE "{left[-1]}" AS SELECT * FROM "{staging}" WITH NO DATA')
        die()

    for point in ("jdbc: staging created", "jdbc: rows staged", "jdbc: rows inserted", "jdbc: ledger updated"):
        with place.sink().open("clicks") as sink, meanwhile(point, die_and_leave_table), pytest.raises(Died):
            sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert len(place.staged()) == 4
    assert place.rows() == Counter()
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert place.staged() == []
    assert place.rows() == Counter(numbered(0, 2))


def test_rows_that_a_repeated_task_staged_twice_are_not_published(place, spark):
    place.make()

    def again():
        (staging,) = place.staged()
        place.execute(f'INSERT INTO "{staging}" SELECT * FROM "{staging}"')

    with place.sink().open("clicks") as sink:
        with meanwhile("jdbc: rows staged", again), pytest.raises(RetriableError, match="6 rows staged and 3"):
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        assert place.rows() == Counter()
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert place.rows() == Counter(numbered(0, 3))


# Keys


def keyed(spark, rows):
    """(id, text, offset)"""
    schema = "id BIGINT, text STRING, _kafka STRUCT<topic: STRING, partition: INT, offset: BIGINT>"
    return spark.createDataFrame([(number, text, ("clicks", 0, offset)) for number, text, offset in rows], schema)


def test_with_a_key_the_newest_row_takes_the_place_of_older_ones(place, spark):
    place.make()
    with place.sink(key="id").open("clicks") as sink:
        sink.write(batch(1, 0, 3), keyed(spark, [(1, "old", 0), (2, "kept", 1), (1, "new", 9), (1, "middle", 2)]))
        assert place.rows() == Counter([(1, "new"), (2, "kept")])
        sink.write(batch(2, 3, 5), keyed(spark, [(1, "newest", 10), (3, "three", 11)]))
        sink.write(batch(2, 3, 5), keyed(spark, [(1, "newest", 10), (3, "three", 11)]))
    assert place.rows() == Counter([(1, "newest"), (2, "kept"), (3, "three")])


def test_with_a_key_what_is_read_again_after_the_offsets_were_moved_back_replaces_the_row(place, spark):
    """Older values too, until the newer ones are read again."""
    place.make()
    with place.sink(key="id").open("clicks") as sink:
        sink.write(batch(1, 0, 2), keyed(spark, [(1, "old", 0), (2, "kept", 1)]))
        sink.write(batch(2, 2, 3), keyed(spark, [(1, "new", 2)]))
        sink.write(replace(batch(3, 0, 2), epoch=1), keyed(spark, [(1, "old", 0), (2, "kept", 1)]))
        assert place.rows() == Counter([(1, "old"), (2, "kept")])
        sink.write(replace(batch(4, 2, 3), epoch=1), keyed(spark, [(1, "new", 2)]))
    assert place.rows() == Counter([(1, "new"), (2, "kept")])


def test_a_key_of_several_columns(place, spark):
    place.make()
    with place.sink(key=["id", "text"]).open("clicks") as sink:
        sink.write(batch(1, 0, 2), keyed(spark, [(1, "a", 0), (1, "b", 1)]))
        sink.write(batch(2, 2, 4), keyed(spark, [(1, "a", 2), (2, "a", 3)]))
    assert place.rows() == Counter([(1, "a"), (1, "b"), (2, "a")])


def test_a_key_that_does_not_identify_a_row_is_refused(place, spark):
    place.make()
    with place.sink(key="id").open("clicks") as sink:
        with pytest.raises(ConfigError, match="several rows with one key"):
            sink.write(batch(1, 0, 2), keyed(spark, [(1, "a", 0), (1, "b", 1)]).drop("_kafka"))
        with pytest.raises(ConfigError, match="null in its key"):
            sink.write(batch(1, 0, 2), keyed(spark, [(None, "a", 0), (2, "b", 1)]))
        with pytest.raises(ConfigError, match="the rows lack the key id"):
            sink.prepare(StructType.fromDDL("text STRING"))
    assert place.rows() == Counter()


# Tables


def test_a_table_is_made_only_with_create_and_then_holds_every_plain_type(place, spark):
    every = spark.sql("""SELECT id, CAST(id AS INT) AS whole, CAST(id AS SMALLINT) AS small, CAST(id AS DOUBLE) AS x,
        true AS truth, CAST(id + 0.25 AS DECIMAL(20, 2)) AS exact, CAST('ab' AS BINARY) AS bytes, 'naïve' AS text,
        DATE'2024-02-29' AS day, TIMESTAMP'2024-05-06 07:08:09.123456' AS moment FROM range(2)""")
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError, match="no such table"):
        sink.prepare(every.schema)
    with place.sink(create=True).open("clicks") as sink:
        sink.prepare(every.schema)
        sink.write(batch(1, 0, 2), every)
    options = place.database.options(f'"{place.table}"')
    (row,) = spark.read.format("jdbc").options(**options).load().where("id = 1").collect()
    assert (row["whole"], row["small"], row["x"], row["truth"], row["text"]) == (1, 1, 1.0, True, "naïve")
    assert (row["exact"], bytes(row["bytes"]), row["day"]) == (Decimal("1.25"), b"ab", date(2024, 2, 29))
    assert row["moment"].astimezone(UTC) == datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


@pytest.mark.parametrize("there", ["id BIGINT", "id BIGINT, text INT"])
def test_rows_that_do_not_fit_are_refused_with_both_sides(place, spark, there):
    place.make(there)
    with place.sink().open("clicks") as sink, pytest.raises(ConfigError) as refused:
        sink.prepare(frame(spark, []).schema)
    assert "rows: id bigint, text string; table: " in refused.value.message


@pytest.mark.parametrize("column", ["array(1)", "named_struct('a', 1)", "map('a', 1)", "INTERVAL '1' DAY", "NULL"])
def test_a_type_that_no_table_has_is_refused_by_column(place, spark, column):
    with place.sink(create=True).open("clicks") as sink, pytest.raises(ConfigError, match=r"column c.* is of type"):
        sink.prepare(spark.sql(f"SELECT {column} AS c").schema)


def test_columns_with_odd_names_and_letters_of_either_case_are_found(place, spark):
    place.execute(f'CREATE TABLE "{place.table}" ("ID" BIGINT, "two words" VARCHAR(9), "select" INT, more INT)')
    with place.sink(key="id").open("clicks") as sink:
        sink.write(batch(1, 0, 1), spark.sql("SELECT 1L AS id, 'a' AS `two words`, 2 AS `select`"))
        sink.write(batch(2, 1, 2), spark.sql("SELECT 1L AS id, 'b' AS `two words`, 3 AS `select`"))
    assert place.query(f'SELECT "ID", "two words", "select", more FROM "{place.table}"') == [(1, "b", 3, None)]


def test_a_row_that_a_constraint_forbids_is_a_mistake_and_nothing_moves(place, spark):
    place.make("id BIGINT NOT NULL PRIMARY KEY, text VARCHAR(100)")
    with place.sink().open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
        with pytest.raises(ConfigError):
            sink.write(batch(2, 1, 3), frame(spark, numbered(1, 3)))
        sink.write(batch(2, 2, 3), frame(spark, numbered(2, 3)))
    assert place.rows() == Counter(numbered(0, 3))


# Secrets and addresses


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql://app:secret@db/app",
        "jdbc:postgresql://db/app?user=app&password=secret",
        "jdbc:sqlserver://db;user=app;password=secret;encrypt=true",
        "jdbc:oracle:thin:app/secret@//db:1521/app",
        "jdbc:derby:app;user=app;password=secret",
    ],
)
def test_a_secret_is_not_shown(url):
    sink = Jdbc(url, table="clicks", properties={"password": "hidden"})
    assert "secret" not in repr(sink)
    assert "hidden" not in repr(sink)
    assert "secret" not in Database(url).clean(f"No suitable driver found for {url}")


def test_a_server_that_does_not_answer_is_retried_and_a_driver_that_is_not_there_is_not(spark, jdbc_postgres):
    nobody = Jdbc(
        "jdbc:postgresql://127.0.0.1:1/app?password=secret", table="clicks", driver="org.postgresql.Driver"
    ).open("clicks")
    with pytest.raises(RetriableError) as refused:
        nobody.last_batch()
    assert "secret" not in str(refused.value)
    for settings in ({}, {"driver": "com.example.Driver"}):
        with pytest.raises(ConfigError, match="no JDBC driver") as missing:
            Jdbc("jdbc:nosuch://db/app?password=secret", table="clicks", **settings).open("clicks").last_batch()
        assert "secret" not in str(missing.value)


@pytest.mark.parametrize(("url", "table"), [("postgresql://db/app", "clicks"), ("jdbc:derby:app", "a..b"), ("", "t")])
def test_what_cannot_be_meant_is_refused_when_written_down(url, table):
    with pytest.raises(ConfigError):
        Jdbc(url, table=table)
