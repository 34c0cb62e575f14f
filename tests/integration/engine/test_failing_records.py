"""Records on which the transform raises, and batches that take too long, through whole runs."""

import threading
import time
import uuid

import psycopg
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType

import headrace as hr
from headrace import events, sinks, stores
from headrace.core.dead_letters import RecordId
from headrace.engine.failing_records import _row_error
from headrace.engine.row_independence import step_over_several_records
from headrace.errors import BadRecord, BatchChanged, BatchTimeout, TransformFailed
from headrace.support.tracebacks import shown_path
from headrace.tools.dead_letters import DeadLetterAdmin

FORMAT = hr.Json("id BIGINT, text STRING")
SOON = hr.Retry(first="10ms", longest="20ms", attempts=8)


def shouting():
    def shout(text):  # in here, so that workers get it by value
        if text == "poison":
            raise ValueError("cannot shout this")  # the line that letters and errors name
        return text.upper()

    return shout


LINE = f"{shown_path(__file__)}:{shouting.__code__.co_firstlineno + 3}"
SHOUT = sql.udf(shouting(), StringType())


def by_function(rows):
    return rows.select("id", SHOUT("text").alias("text"), "_kafka")


def by_expression(rows):
    return rows.selectExpr("id", "CAST(replace(replace(text, 'poison', 'x'), 't', '') AS INT) AS number", "_kafka")


@pytest.fixture
def poisoned(topic):
    """120 records in two partitions, two of which the transforms do not take: offsets 7 of each partition."""
    where = topic(partitions=2)
    where.produce([{"id": n, "text": "poison" if n in (14, 15) else f"t{n}"} for n in range(120)])
    return where


def pipeline(where, sink, transform, **more):
    return hr.Pipeline(
        **{
            "name": f"p-{uuid.uuid4().hex[:8]}",
            "source": hr.Kafka(where.bootstrap, topics=[where.name], format=FORMAT),
            "sink": sink,
            "transform": transform,
            "guarantee": "exactly-once",
            "retry": SOON,
            **more,
        }
    )


GOOD = [n for n in range(120) if n not in (14, 15)]


@pytest.mark.parametrize("patient", [True, False])
def test_a_transactional_sink_stores_the_others_and_the_record_with_its_traceback_together(
    poisoned, postgres, spark, patient
):
    table, seen = f"t_{uuid.uuid4().hex[:12]}", []
    sink = sinks.Postgres(postgres.address, table, create=True)
    made = pipeline(poisoned, sink, by_function, dead_letters=f"{table}_dead")
    made.run(until="caught-up", session=spark, observer=seen.append, fail_fast=not patient)

    letters = DeadLetterAdmin(made).letters()
    assert [letter.origin for letter in letters] == [RecordId(poisoned.name, n, 7) for n in (0, 1)]
    assert [letter.value for letter in letters] == [b'{"id": %d, "text": "poison"}' % n for n in (14, 15)]
    assert {letter.place for letter in letters} == {"transform"}
    for letter in letters:
        assert letter.error.startswith(f"ValueError: cannot shout this ({LINE})")
        assert "in shout" in letter.error
    with psycopg.connect(postgres.address) as connection:
        assert [n for (n,) in connection.execute(f"SELECT id FROM {table} ORDER BY id")] == GOOD
    assert [event.count for event in seen if isinstance(event, events.RecordsQuarantined)] == [2]
    assert len([event for event in seen if isinstance(event, events.BatchDone)]) == 1


def test_an_idempotent_sink_stores_the_others_and_a_replay_diverts_the_same_records(poisoned, tmp_path, spark, topic):
    dead = topic(partitions=1)

    class Dies(stores.SQLite):
        """Loses the process between the rows and the offsets, once."""

        left = 1

        def commit(self, batch):
            if len(batch) and Dies.left:
                Dies.left -= 1
                raise KeyboardInterrupt
            super().commit(batch)

    made = pipeline(
        poisoned,
        sinks.Parquet(tmp_path / "rows"),
        by_expression,
        offsets=Dies(tmp_path / "o.db"),
        dead_letters=hr.DeadLetters(topic=dead.name),
    )
    runs = []
    with pytest.raises(KeyboardInterrupt):
        made.run(until="caught-up", session=spark, observer=runs.append)
    first = sorted(DeadLetterAdmin(made).letters(), key=lambda letter: letter.origin)
    made.run(until="caught-up", session=spark, observer=runs.append)
    assert [event.replay for event in runs if isinstance(event, events.BatchStarted)][-1]

    letters = sorted(DeadLetterAdmin(made).letters(), key=lambda letter: letter.origin)
    assert letters == first
    assert [letter.origin for letter in letters] == [RecordId(poisoned.name, n, 7) for n in (0, 1)]
    assert all("CAST_INVALID_INPUT" in letter.error and letter.place == "transform" for letter in letters)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row["id"] for row in rows) == GOOD
    # An expression fails for the same value each time: nobody waits for it to pass.
    retries = [event.error for event in runs if isinstance(event, events.Retrying)]
    assert [type(error) for error in retries] == [BatchChanged] * len(retries)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("parse_json(replace(text, 'poison', '{'))", "JsonEOFException"),
        ("str_to_map(concat('poison=1,', text, '=2'), ',', '=')", "DUPLICATED_MAP_KEY"),
        ("split(text, replace(text, 'poison', '['))", "PatternSyntaxException"),
    ],
    ids=["a cause with a state", "a state of its own", "no state"],
)
def test_whatever_way_spark_reports_a_value_its_record_is_found(topic, spark, expression, said):
    where, dead = topic(partitions=1), topic(partitions=1)
    where.produce([{"id": n, "text": "poison" if n == 3 else str(n)} for n in range(12)])
    sink = sinks.Memory()
    made = pipeline(
        where,
        sink,
        lambda rows: rows.selectExpr("id", f"CAST({expression} AS STRING) AS text"),
        guarantee="at-least-once",
        offsets=stores.Memory(),
        dead_letters=hr.DeadLetters(topic=dead.name),
    )
    made.run(until="caught-up", session=spark)
    (letter,) = DeadLetterAdmin(made).letters()
    assert letter.origin == RecordId(where.name, 0, 3)
    assert said in letter.error
    assert sorted(row["id"] for row in sink.rows) == [n for n in range(12) if n != 3]


@pytest.mark.parametrize(
    "expression",
    [
        "map(text, 1, text, 2)",
        "to_number(text, '999')",
        "sequence(1, 10, -id)",
        "sequence(1, 3000000000 + id)",
        "repeat(text, 2147483647)",
        "text RLIKE concat(text, '(')",
        "xpath_string(concat('<a>', text), 'a')",
        "format_string(concat(text, '%d %s'), id)",
        "from_json(text, 'a INT', map('mode', 'FAILFAST'))",
        "from_csv(text, 'a INT', map('mode', 'FAILFAST'))",
    ],
)
def test_an_error_of_an_expression_is_one_of_the_rows(spark, expression):
    rows = spark.createDataFrame([(1, "poison")], "id INT, text STRING").repartition(1)
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        rows.selectExpr(expression).write.format("noop").mode("overwrite").save()
    assert _row_error(failed.value) is failed.value


def test_an_error_of_an_expression_is_one_of_the_rows_in_a_write_of_sparks_own(spark, tmp_path):
    rows = spark.createDataFrame([(1, "poison")], "id INT, text STRING").repartition(1)
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        rows.selectExpr("CAST(text AS INT) AS id").write.parquet(str(tmp_path / "rows"))
    assert _row_error(failed.value) is failed.value


def test_an_error_of_a_reader_or_of_the_plan_is_none_of_the_rows(spark, tmp_path):
    spark.range(9).write.parquet(str(tmp_path / "rows"))
    rows = spark.read.parquet(str(tmp_path / "rows"))
    for file in (tmp_path / "rows").glob("*.parquet"):
        file.write_bytes(b"PAR1" * 100)
    with pytest.raises((PySparkException, Py4JJavaError)) as unreadable:
        rows.write.format("noop").mode("overwrite").save()
    assert _row_error(unreadable.value) is None
    with pytest.raises(AnalysisException) as refused:
        rows.selectExpr("to_char(id, id)")
    assert _row_error(refused.value) is None


@pytest.mark.parametrize("transform", [by_function, by_expression])
def test_without_dead_letters_the_run_stops_with_the_record_and_the_line(poisoned, spark, transform):
    sink = sinks.Memory()
    made = pipeline(poisoned, sink, transform, guarantee="at-least-once", offsets=stores.Memory())
    with pytest.raises(BadRecord) as stopped:
        made.run(until="caught-up", session=spark)
    assert f"{poisoned.name}[0] offset 7: the transform fails: " in stopped.value.message
    assert (LINE if transform is by_function else "CAST_INVALID_INPUT") in stopped.value.message
    assert "dead_letters" in stopped.value.hint
    assert sink.rows == []


def test_a_function_that_fails_for_a_moment_costs_no_record(poisoned, spark, tmp_path, topic):
    away = tmp_path / "away"
    away.touch()

    def ask(text):
        if away.exists():
            raise ConnectionError("the service is away")
        return text

    lookup = sql.udf(ask, "string")
    sink, dead = sinks.Memory(), topic(partitions=1)
    made = pipeline(
        poisoned,
        sink,
        lambda rows: rows.select("id", lookup("text")),
        guarantee="at-least-once",
        offsets=stores.Memory(),
        dead_letters=hr.DeadLetters(topic=dead.name),
    )

    def back(event):
        if isinstance(event, events.Retrying) and event.attempt == 2:
            away.unlink()

    made.run(until="caught-up", session=spark, observer=back)
    assert len(sink.rows) == 120
    assert DeadLetterAdmin(made).letters() == []


@pytest.mark.parametrize(
    ("records", "limit", "said"), [(12, 1_000, "all 12 records"), (300, 3, "more than 3 records of batch 1")]
)
def test_a_transform_that_fails_on_everything_stops_and_diverts_nothing(topic, spark, records, limit, said):
    where, dead = topic(partitions=1), topic(partitions=1)
    where.produce([{"id": n, "text": "poison"} for n in range(records)])
    sink = sinks.Memory()
    made = pipeline(
        where,
        sink,
        by_expression,
        guarantee="at-least-once",
        offsets=stores.Memory(),
        dead_letters=hr.DeadLetters(topic=dead.name, limit=limit),
    )
    with pytest.raises(TransformFailed, match=said):
        made.run(until="caught-up", session=spark)
    assert sink.rows == []
    assert DeadLetterAdmin(made).letters() == []


def test_a_transform_over_several_records_stops_with_the_error_of_the_step(poisoned, spark, topic):
    def totals(rows):
        return by_expression(rows).groupBy("number").count()

    made = pipeline(
        poisoned,
        sinks.Memory(),
        totals,
        guarantee="at-least-once",
        offsets=stores.Memory(),
        dead_letters=hr.DeadLetters(topic=topic(partitions=1).name),
    )
    with pytest.raises(TransformFailed, match="CAST_INVALID_INPUT") as stopped:
        made.run(until="caught-up", session=spark)
    assert "Aggregate" in stopped.value.hint


def test_an_error_of_programming_stops_at_once_with_its_line(topic, spark):
    where, seen = topic(partitions=1), []
    where.produce([{"id": 1}])

    def broken(rows):
        return rows.where(nowhere)  # noqa: F821

    made = pipeline(where, sinks.Memory(), broken, guarantee="at-least-once", offsets=stores.Memory())
    with pytest.raises(TransformFailed, match=f"NameError: .*:{broken.__code__.co_firstlineno + 1}"):
        made.run(session=spark, observer=seen.append)
    assert not [event for event in seen if isinstance(event, events.Retrying)]


def test_an_error_of_programming_in_a_function_stops_at_once_and_diverts_nothing(topic, spark):
    where, dead, seen = topic(partitions=1), topic(partitions=1), []
    where.produce([{"id": 1, "text": "a"}])

    def shout(text):
        return text.uppr() if text is None else shuot(text)  # noqa: F821

    made = pipeline(
        where,
        sinks.Memory(),
        lambda rows: rows.select(sql.udf(shout, "string")("text")),
        guarantee="at-least-once",
        offsets=stores.Memory(),
        dead_letters=hr.DeadLetters(topic=dead.name),
    )
    with pytest.raises(TransformFailed, match=f"NameError: .*:{shout.__code__.co_firstlineno + 1}"):
        made.run(session=spark, observer=seen.append)
    assert not [event for event in seen if isinstance(event, events.Retrying)]
    assert not DeadLetterAdmin(made).letters()


def test_an_exception_of_the_transform_that_does_not_pass_stops_the_run(topic, spark):
    where, seen = topic(partitions=1), []
    where.produce([{"id": 1}])

    def broken(rows):
        if rows.count():
            raise LookupError("no rates")
        return rows

    made = pipeline(where, sinks.Memory(), broken, guarantee="at-least-once", offsets=stores.Memory())
    with pytest.raises(TransformFailed, match="LookupError: no rates"):
        made.run(session=spark, observer=seen.append)
    assert len([event for event in seen if isinstance(event, events.Retrying)]) == 2


def test_what_each_record_makes_by_itself_is_read_off_the_plan(spark):
    records = spark.createDataFrame([(1, "a")], "id INT, text STRING")
    table = spark.createDataFrame([(1, "one")], "id INT, name STRING")
    records.createOrReplaceTempView("poison_records")

    def step(rows):
        return step_over_several_records(rows, [records])

    assert step(records.select(SHOUT("text")).where("text <> 'x'").selectExpr("explode(array(1, 2))")) is None
    assert step(records.join(table, "id")) is None
    assert step(records.join(table.groupBy("id").count(), "id", "left")) is None
    assert step(table.join(records, "id", "left")) == "Join LeftOuter"
    assert step(records.join(records.withColumnRenamed("text", "other"), "id")) == "Join Inner"
    assert step(records.union(records)) is None
    assert step(records.groupBy("id").count()) == "Aggregate"
    assert step(records.limit(1)) is not None
    assert step(spark.sql("SELECT row_number() OVER (ORDER BY id) FROM poison_records")) == "Window"
    assert step(spark.sql("SELECT id / (SELECT count(*) FROM poison_records) FROM poison_records")) is not None
    assert step(spark.sql("WITH a AS (SELECT id FROM poison_records) SELECT id + 1 FROM a")) is None


def test_a_batch_that_takes_too_long_is_cancelled_alone_and_repeated(topic, spark, tmp_path):
    where, stuck, seen = topic(partitions=1), tmp_path / "stuck", []
    where.produce([{"id": n, "text": "t"} for n in range(10)])
    stuck.touch()

    def wait(text):
        while stuck.exists():
            time.sleep(0.05)
        return text

    slow = sql.udf(wait, "string")
    sink = sinks.Memory()
    made = pipeline(
        where,
        sink,
        lambda rows: rows.select("id", slow("text")),
        guarantee="at-least-once",
        offsets=stores.Memory(),
        timeout="3s",
    )
    other = []
    neighbour = threading.Thread(target=lambda: other.append(spark.range(1).select(slow(sql.lit("x"))).collect()))
    neighbour.start()

    def look(event):
        seen.append(event)
        if isinstance(event, events.BatchTimedOut) and event.count == 2:
            stuck.unlink()

    made.run(until="caught-up", session=spark, observer=look)
    neighbour.join(60)
    assert len(sink.rows) == 10
    assert len(other) == 1, "another job of the session was cancelled"
    assert [event.count for event in seen if isinstance(event, events.BatchTimedOut)] == [1, 2]

    stuck.touch()
    where.produce([{"id": 11, "text": "t"}])
    try:
        with pytest.raises(BatchTimeout, match="took longer than 3 s"):
            made.run(until="caught-up", session=spark, fail_fast=True)
    finally:
        stuck.unlink()
