"""The PostgreSQL sink on a real topic: which way it writes, what others see meanwhile, and what faults leave."""

import threading
import uuid
from decimal import Decimal

import psycopg
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import headrace as hr
from headrace import events, sinks
from headrace.connectors.postgres.claims import ClaimedOffsets
from headrace.connectors.postgres.copy_task import CopyAndCommitTask
from headrace.core.state import RunLease
from headrace.dev import Postgres
from headrace.errors import BadRecord, ConfigError, OffsetConflict, RetriableError
from headrace.spark import task_alignment
from headrace.spark.tasks import Report, report_of
from headrace.types import Batch, Range, TopicPartition
from support.interleaving import meanwhile, points_reached

BY_PARTITION = "each task copies"
BY_BATCH = "one transaction publishes the batch"


@pytest.fixture
def table():
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def ask(postgres):
    def asked(query, *parameters):
        with psycopg.connect(postgres.address, autocommit=True) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else None

    return asked


@pytest.fixture
def filled(topic):
    def make(records=400, partitions=4):
        made = topic(partitions=partitions)
        made.produce([{"id": n, "user": f"u{n % 7}"} for n in range(records)])
        return made

    return make


def pipeline(where, sink, **more):
    settings = {"guarantee": "exactly-once", "transform": lambda rows: rows, **more}
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT, user STRING"))
    return hr.Pipeline(name=f"p-{uuid.uuid4().hex[:8]}", source=source, sink=sink, **settings)


# Which way


@pytest.mark.parametrize(
    ("transform", "way"),
    [
        (lambda rows: rows.where("id % 2 = 0").selectExpr("id", "upper(user) AS user"), BY_PARTITION),
        (lambda rows: rows.selectExpr("explode(array(id, id)) AS id", "user"), BY_PARTITION),
        (lambda rows: rows.repartition(3), BY_BATCH),
        (lambda rows: rows.coalesce(1), BY_BATCH),
        (lambda rows: rows.union(rows), BY_BATCH),
        (lambda rows: rows.groupBy("user").agg({"id": "max"}).withColumnRenamed("max(id)", "id"), BY_BATCH),
        (lambda rows: rows.orderBy("id"), BY_BATCH),
        (lambda rows: rows.join(rows.select("user").limit(1), "user"), BY_BATCH),
    ],
    ids=["narrow", "explode", "repartition", "coalesce", "union", "aggregate", "sort", "join"],
)
def test_the_way_is_read_off_the_plan_and_every_row_arrives(transform, way, filled, spark, postgres, table, ask):
    ways = {"postgres: partitions written": BY_PARTITION, "postgres: staged": BY_BATCH}
    where = filled()
    made = pipeline(where, sinks.Postgres(postgres.address, table, create=True), transform=transform)
    from headrace.engine.source_readers import SourceReaders
    from headrace.runtime.launch import check_transform

    assert way in made.sink.describe_write(check_transform(made, SourceReaders.of(spark, made)), cached=False)
    with points_reached() as reached:
        made.run(until="caught-up", session=spark, fail_fast=True)
    assert {ways[point] for point in reached if point in ways} == {way}
    expected = transform(spark.createDataFrame([(n, f"u{n % 7}") for n in range(400)], "id BIGINT, user STRING"))
    stored = ask(f'SELECT id, "user" FROM {table}')
    assert sorted(stored) == sorted((row["id"], row["user"]) for row in expected.select("id", "user").collect())


def test_an_operator_that_is_not_known_to_stay_in_its_task_makes_a_plan_wide(filled, spark):
    assert not task_alignment.plan_is_narrow(spark.range(10).toDF("id"))


# Types


ALL = """bool BOOLEAN, tiny TINYINT, small SMALLINT, int INT, big BIGINT, float FLOAT, double DOUBLE,
    dec DECIMAL(38,18), text STRING, bytes BINARY, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, list ARRAY<INT>,
    map MAP<STRING, INT>, struct STRUCT<a: INT, b: STRING>, apart INTERVAL DAY TO SECOND,
    months INTERVAL YEAR TO MONTH"""
VALUES = """SELECT true, -128Y, -32768S, -2147483648, 9223372036854775807L, CAST('Infinity' AS FLOAT),
    CAST('NaN' AS DOUBLE), -12345678901234567890.123456789012345678BD, 'tab\\tnew\\nback\\\\slash "q" \\r é 😀',
    X'00FF5C0A', DATE'2024-02-29', TIMESTAMP'2024-03-31 01:30:00.123456 UTC', TIMESTAMP_NTZ'2024-03-31 02:30:00.5',
    array(1, NULL, 3), map('k', 1), named_struct('a', NULL, 'b', 'x"y\\n'), INTERVAL '-1 02:03:04.5' DAY TO SECOND,
    INTERVAL '1-2' YEAR TO MONTH"""


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("visible", ["partition", "batch"])
def test_every_type_comes_back_as_it_went(zone, visible, spark, postgres, table, ask):
    from datetime import UTC, date, datetime, timedelta

    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        full = spark.sql(VALUES).toDF(*[f.name for f in _schema(ALL)])
        empty = full.selectExpr(*[f"if(rand() > 2, {name}, NULL) AS {name}" for name in full.columns])
        with sinks.Postgres(postgres.address, table, create=True, visible=visible).open(f"p-{table}") as sink:
            sink.write(_batch(1, 0, 1), full)
            sink.write(_batch(2, 1, 2), empty)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    with psycopg.connect(postgres.address) as connection:
        connection.execute("SET timezone TO 'UTC'")
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY big NULLS LAST").fetchall()
    assert rows[1] == tuple([None] * 18)
    (*plain, double, dec, text, raw, day, at, wall, items, mapping, struct, apart, months) = rows[0]
    assert plain == [True, -128, -32768, -2147483648, 9223372036854775807, float("inf")]
    assert double != double
    assert dec == Decimal("-12345678901234567890.123456789012345678")
    assert text == 'tab\tnew\nback\\slash "q" \r é 😀'
    assert raw == b"\x00\xff\\\n"
    assert (day, at) == (date(2024, 2, 29), datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=UTC))
    assert wall == datetime(2024, 3, 31, 2, 30, 0, 500000)
    assert (items, mapping, struct) == ([1, None, 3], {"k": 1}, {"a": None, "b": 'x"y\n'})
    assert apart == -timedelta(days=1, hours=2, minutes=3, seconds=4.5)
    assert months == timedelta(days=365 + 60)  # psycopg counts a month as 30 days and a year as 365


@pytest.mark.parametrize(
    ("column", "there", "taken"),
    [
        ("id BIGINT", "id integer", True),
        ("id BIGINT", "id text", False),
        ("id BIGINT", "id boolean", False),
        ("id STRING", "id integer", False),
        ("id STRING", "id uuid", True),
        ("id STRING", "id jsonb", True),
        ("id STRING", "id varchar(3)", True),
        ("id TIMESTAMP", "id timestamp", True),
        ("id TIMESTAMP_NTZ", "id timestamptz", False),
        ("id STRUCT<a: INT>", "id text", False),
        ("id DECIMAL(10,2)", "id integer", False),
    ],
)
def test_types_that_do_not_fit_are_refused_before_anything_is_read(column, there, taken, spark, postgres, table, ask):
    ask(f"CREATE TABLE {table} ({there})")
    schema = _schema(column)
    with sinks.Postgres(postgres.address, table).open(f"p-{table}") as sink:
        if taken:
            sink.prepare(schema)
        else:
            with pytest.raises(ConfigError, match="the rows do not fit"):
                sink.prepare(schema)


# What others see


@pytest.mark.parametrize("visible", ["partition", "batch"])
def test_nobody_sees_part_of_a_batch(visible, topic, spark, postgres, table, ask):
    """A reader counts all the time: by partition, and over all of them, only whole batches are ever there."""
    partitions, size, batches = 2, 500, 6
    where = topic(partitions=partitions)
    where.produce([{"id": n, "user": str(n)} for n in range(partitions * size * batches)])
    ask(f'CREATE TABLE {table} (id bigint, "user" text, p integer)')
    seen, stop = set(), threading.Event()

    def look():
        with psycopg.connect(postgres.address, autocommit=True) as connection:
            while not stop.is_set():
                found = connection.execute(f"SELECT p, count(*) FROM {table} GROUP BY p").fetchall()
                seen.add(tuple(sorted(found)))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        pipeline(
            where,
            sinks.Postgres(postgres.address, table, visible=visible),
            transform=lambda rows: rows.selectExpr("id", "user", "_kafka.partition AS p", "_kafka"),
            limits=hr.Limits(max_records=partitions * size),
        ).run(until="caught-up", session=spark, fail_fast=True)
    finally:
        stop.set()
        reader.join()
    counts = [dict(found) for found in seen]
    assert len(counts) > 2, "the reader saw nothing of the way"
    assert all(count % size == 0 for found in counts for count in found.values()), counts
    if visible == "batch":
        assert all(len(set(found.values())) <= 1 and len(found) in (0, partitions) for found in counts), counts
    assert max(sum(found.values()) for found in counts) == partitions * size * batches


# Faults


def _claimed(postgres, table, ask, by):
    """A table, and the name of a pipeline that `by` has claimed."""
    ask(f'CREATE TABLE {table} (id bigint, "user" text)')
    name = f"p-{table}"
    with sinks.Postgres(postgres.address, table).open(name) as sink:
        sink.prepare(StructType().add("id", LongType()).add("user", StringType()))  # which asks no session
    ask("INSERT INTO headrace_claims VALUES (%s, %s)", name, by)
    return name


def _attempt(postgres, name, r, table, lines, topic_id="old", **how):
    """What a task does, in this process."""
    import pyarrow as pa

    batch = Batch(1, (r,), {r.at.topic: topic_id})
    work = CopyAndCommitTask(
        postgres.address, name, "mine", batch, None, f'COPY {table} (id, "user") FROM STDIN', **how
    )
    return report_of(work, iter([pa.RecordBatch.from_pydict({"line": lines})]))


def test_a_repeated_attempt_of_a_task_writes_nothing_and_a_zombies_is_refused(postgres, table, ask):
    name = _claimed(postgres, table, ask, by="mine")
    r = Range(TopicPartition("t", 0), 0, 2)
    lines = ["1\ta\n", "2\tb\n"]
    assert _attempt(postgres, name, r, table, lines) == Report(rows=2)
    assert _attempt(postgres, name, r, table, lines) == Report(rows=0)
    assert ask(f"SELECT count(*) FROM {table}") == [(2,)]
    for stale in (Range(r.at, 0, 5), Range(r.at, 1, 2 + 1)):
        refused = _attempt(postgres, name, stale, table, lines)
        assert refused.error[0] == OffsetConflict.__name__
    assert ask(f"SELECT count(*) FROM {table}") == [(2,)]


def test_a_task_of_a_run_that_was_taken_over_from_commits_nothing(postgres, table, ask):
    name = _claimed(postgres, table, ask, by="the successor")
    refused = _attempt(postgres, name, Range(TopicPartition("t", 0), 0, 2), table, ["1\ta\n"])
    assert (refused.error[0], "taken over" in refused.error[1]) == ("OffsetConflict", True)
    with sinks.Postgres(postgres.address, table).open(name) as sink:
        assert sink.offsets.load().offsets == {}
    assert ask(f"SELECT count(*) FROM {table}") == [(0,)]


def test_from_the_sign_of_a_new_run_on_the_old_one_commits_nothing(spark, postgres, table, ask):
    """Before the new run's first batch: else it would plan one that the old run is about to commit."""
    name = _claimed(postgres, table, ask, by="mine")
    r = Range(TopicPartition("t", 0), 0, 2)
    with (
        sinks.Postgres(postgres.address, table).open(name) as old,
        sinks.Postgres(postgres.address, table).open(name) as new,
    ):
        old.offsets.set_lease(RunLease("host", 1, 1.0, 1.0))
        new.prepare(_schema("id BIGINT, user STRING"))
        new.offsets.set_lease(RunLease("host", 2, 2.0, 2.0))
        refused = _attempt(postgres, name, r, table, ["1\ta\n"])
        assert (refused.error[0], "taken over" in refused.error[1]) == ("OffsetConflict", True)
        with pytest.raises(OffsetConflict, match="taken over"):
            old.offsets.claim_for(Batch(1, (r,)))
        assert new.offsets.load().offsets == {}
        new.offsets.claim_for(Batch(1, (r,)))


def test_a_task_that_read_a_deleted_topic_commits_nothing_over_offsets_of_the_new_one(postgres, table, ask):
    """The offsets were moved to the recreated topic while the task was at work, and stand where its range starts."""
    name = _claimed(postgres, table, ask, by="mine")
    r = Range(TopicPartition("t", 0), 0, 2)
    with sinks.Postgres(postgres.address, table).open(name) as sink:
        sink.offsets.commit(Batch(1, (Range(r.at, 0, 0),), {"t": "new"}))
        refused = _attempt(postgres, name, r, table, ["1\ta\n", "2\tb\n"], topic_id="old")
        assert (refused.error[0], "recreated" in refused.error[1]) == ("OffsetConflict", True)
        assert sink.offsets.load().offsets == {r.at: 0}
        assert ask(f"SELECT count(*) FROM {table}") == [(0,)]
        assert _attempt(postgres, name, r, table, ["1\ta\n", "2\tb\n"], topic_id="new") == Report(rows=2)


def test_a_speculative_attempt_that_comes_second_leaves_nothing(postgres, table, ask):
    name = _claimed(postgres, table, ask, by="mine")
    r = Range(TopicPartition("t", 0), 0, 1)
    reports, both = [], threading.Barrier(2)

    def attempt():
        both.wait()
        reports.append(_attempt(postgres, name, r, table, ["1\ta\n"] * 20_000))

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.rows for report in reports) == [0, 20_000]
    assert ask(f"SELECT count(*) FROM {table}") == [(20_000,)]


def test_rows_of_an_attempt_that_spark_does_not_count_are_not_published(
    filled, spark, postgres, table, ask, monkeypatch
):
    """An attempt can commit its rows to the staging table and still be reported failed."""
    from headrace.spark import tasks

    original = tasks.run

    def with_a_stray(lines, task, **how):
        original(lines, task, **how)  # all of them, and nobody hears of it
        return original(lines, task, **how)

    monkeypatch.setattr(tasks, "run", with_a_stray)
    made = pipeline(filled(), sinks.Postgres(postgres.address, table, create=True, visible="batch"))
    made.run(until="caught-up", session=spark, fail_fast=True)
    assert ask(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(400, 400)]


def test_a_server_that_dies_between_staging_and_publishing_costs_a_repeat_and_no_row(filled, spark, tmp_path, table):
    """The staging table is unlogged: the crash empties it, and publishing what is left would lose the batch."""
    with Postgres(tmp_path / "postgres") as server:

        def crash():
            server.kill()
            server.start()

        seen = []
        made = pipeline(filled(), sinks.Postgres(server.address, table, create=True, visible="batch"))
        with meanwhile("postgres: staged", crash):
            made.run(until="caught-up", session=spark, observer=seen.append)
        assert any(isinstance(e, events.Retrying) and isinstance(e.error, RetriableError) for e in seen)
        with psycopg.connect(server.address) as connection:
            counted = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {table}").fetchall()
        assert counted == [(400, 400)]


def test_staging_tables_that_dead_runs_left_are_cleared(spark, filled, postgres, table, ask):
    sink = sinks.Postgres(postgres.address, table, create=True, visible="batch")
    made = pipeline(filled(), sink)
    left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'headrace\\_staging\\_%%' AND relkind = 'r'"
    ((before,),) = ask(left)
    dead = sinks.Postgres(postgres.address, table, create=True, visible="batch").open(made.name)
    dead.write(_batch(1, 0, 1, topic="other"), spark.createDataFrame([(1, "a")], "id BIGINT, user STRING"))
    dead.offsets.connection.close()  # as if it was killed: nothing is tidied up
    assert ask(left) == [(before + 1,)]
    made.run(until="caught-up", session=spark, fail_fast=True)
    assert ask(left) == [(before,)]


def test_no_more_connections_than_tasks_at_once(spark, filled, postgres, table, ask):
    """Batch after batch: the workers keep theirs, and none is left over."""
    mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    dsn = f"{postgres.address}?application_name=bounded-{table}"
    counts = []

    def look(event):
        if isinstance(event, events.BatchDone):
            counts.append(ask(mine, f"bounded-{table}")[0][0])

    made = pipeline(filled(2_000), sinks.Postgres(dsn, table, create=True), limits=hr.Limits(max_records=200))
    made.run(until="caught-up", session=spark, observer=look, fail_fast=True)
    assert len(counts) == 10
    # One of the driver, and one for each Python worker: Spark starts as many as tasks run at once.
    assert max(counts) <= 1 + spark.sparkContext.defaultParallelism + 1


def test_a_wrong_password_is_reported_without_showing_it(postgres, spark):
    dsn = postgres.address.replace(f"postgres:{postgres.password}@", "nobody:secret-word@")
    with pytest.raises(ConfigError) as refused:
        sinks.Postgres(dsn, "t").open("p")
    assert "secret-word" not in str(refused.value) + repr(sinks.Postgres(dsn, "t"))


def _batch(number, start, until, topic="t"):
    return Batch(number, (Range(TopicPartition(topic, 0), start, until),), {topic: "id"})


def _schema(text):
    return StructType.fromDDL(text)


# Upserts from a topic, task by task


def test_the_last_value_of_every_key_is_there_and_what_was_deleted_is_not(topic, spark, postgres, table, ask):
    """Ten rounds over the same keys, each key in its partition; some end with a tombstone."""
    where = topic(partitions=3)
    for round_ in range(10):
        for number in range(30):
            gone = round_ == 9 and number % 5 == 0
            value = None if gone else {"id": round_, "user": f"u{number}"}
            where.produce([value], key=f"u{number}".encode(), partition=number % 3)
    sink = sinks.Postgres(postgres.address, table, key="user", mode="upsert", create=True)
    made = pipeline(where, sink, limits=hr.Limits(max_records=70))
    from headrace.engine.source_readers import SourceReaders
    from headrace.runtime.launch import check_transform

    assert BY_PARTITION in made.sink.describe_write(check_transform(made, SourceReaders.of(spark, made)), cached=False)
    made.run(until="caught-up", session=spark, fail_fast=True)
    expected = {(f"u{number}", 9) for number in range(30) if number % 5}
    assert set(ask(f'SELECT "user", id FROM {table}')) == expected
    assert ask("SELECT count(*) FROM headrace_offsets WHERE pipeline = %s", made.name) == [(3,)]


def test_a_conflict_with_a_commit_of_our_own_whose_answer_was_lost_is_tried_again(filled, spark, postgres, table, ask):
    """The claim is still ours, so nobody else has moved the offset."""
    sink = sinks.Postgres(postgres.address, table, create=True)
    made, moved, seen = pipeline(filled(), sink), [], []

    def late(event):
        seen.append(event)
        if isinstance(event, events.BatchStarted) and not moved:
            moved.append(event.batch)

    original = ClaimedOffsets.claim_for

    def then_move(self, batch):
        original(self, batch)
        if len(moved) == 1:
            first = moved[0].ranges[0]
            moved.append(first)
            ask(
                'UPDATE headrace_offsets SET next_offset = %s WHERE pipeline = %s AND "partition" = %s',
                first.start + 1,
                self.pipeline,
                first.at.partition,
            )

    ClaimedOffsets.claim_for = then_move
    try:
        made.run(until="caught-up", session=spark, observer=late)
    finally:
        ClaimedOffsets.claim_for = original
    assert [type(e.error) for e in seen if isinstance(e, events.Retrying)] == [RetriableError]
    # The record that was passed over stands for the one whose commit came through late.
    assert ask(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(399, 399)]


@pytest.mark.parametrize("visible", ["partition", "batch"])
def test_no_row_is_lost_when_arrow_counts_in_64_bits(visible, filled, spark, postgres, table, ask):
    name = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(name, "true")
    try:
        made = pipeline(filled(), sinks.Postgres(postgres.address, table, create=True, visible=visible))
        made.run(until="caught-up", session=spark, fail_fast=True)
    finally:
        spark.conf.unset(name)
    assert ask(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(400, 400)]


def test_text_is_right_in_a_database_with_another_encoding(spark, postgres, table, ask):
    ask(f"CREATE DATABASE {table} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    dsn = postgres.address.rpartition("/")[0] + f"/{table}"
    with sinks.Postgres(dsn, "words", create=True).open("p") as sink:
        sink.write(_batch(1, 0, 1), spark.createDataFrame([("é ü",)], "word STRING"))
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT word, length(word) FROM words").fetchall() == [("é ü", 3)]


def test_a_record_that_deletes_and_whose_key_cannot_be_read_is_a_bad_record_and_no_silence(
    topic, spark, postgres, table
):
    where = topic(partitions=1)
    where.produce([{"id": 1, "user": "ann"}], key=b"1")
    where.produce([None], key=b'{"id": 1}')
    sink = sinks.Postgres(postgres.address, table, key="id", mode="upsert", create=True)
    with pytest.raises(BadRecord, match="null value in column"):
        pipeline(where, sink).run(until="caught-up", session=spark)


def test_times_before_the_zones_were_made_are_right(spark, postgres, table, ask):
    """Berlin was 53 minutes and 28 seconds ahead until 1893."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with sinks.Postgres(postgres.address, table, create=True).open(f"p-{table}") as sink:
            sink.write(_batch(1, 0, 1), spark.sql("SELECT timestamp_seconds(-3000000000) AS at"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert ask(f"SELECT extract(epoch FROM at)::bigint FROM {table}") == [(-3000000000,)]


def test_a_batch_begun_with_another_store_is_not_in_the_way_after_a_task_failed(filled, spark, postgres, table, ask):
    """Offsets were copied here with a pending batch; by partition only half of it came through."""
    made = pipeline(filled(), sinks.Postgres(postgres.address, table, create=True))
    ranges = tuple(Range(TopicPartition(made.source.topics[0], n), 0, 100) for n in range(4))
    with made.sink.open(made.name) as sink:
        sink.offsets.commit(Batch(0, tuple(Range(r.at, 0, 0) for r in ranges), {}))
        sink.offsets.begin(Batch(1, ranges, {}))
        sink.prepare(_schema("id BIGINT, user STRING"))
        sink.offsets.claim_for(Batch(1, ranges, {}))
        assert sink.offsets.load().pending is None
    made.run(until="caught-up", session=spark, fail_fast=True)
    assert ask(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(400, 400)]
