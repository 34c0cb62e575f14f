"""Kafka to Kafka: which way records go, what they look like, what is refused, and what is left when something dies."""

import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

import headrace as hr
from headrace import dev, sinks
from headrace.cli.main import app
from headrace.connectors.kafka.sink_offsets import placeholder_prefix
from headrace.connectors.kafka.task import Fenced, PartitionWrite, TransactionalProduceTask
from headrace.core.state import RunLease
from headrace.errors import BadRecord, ConfigError, HeadraceError, OffsetConflict, RetriableError
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.runtime.launch import refuse_loops
from headrace.spark import tasks
from headrace.testing.committed_records import read_committed
from headrace.testing.fixtures import Topic
from headrace.testing.sinks import frame, numbered
from headrace.tools.check import check
from headrace.types import Batch, Range, TopicPartition


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))


@pytest.fixture
def filled(topic):
    """A topic with records, two partitions."""

    def make(values=None, **extra):
        made = topic(partitions=2)
        made.produce([{"id": n, "name": f"n{n % 3}"} for n in range(200)] if values is None else values, **extra)
        return made

    return make


def pipeline(source, sink, schema="id BIGINT, name STRING", **more):
    return hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:12]}",
        source=hr.Kafka(source.bootstrap, topics=[source.name], format=hr.Json(schema)),
        sink=sink,
        guarantee="exactly-once",
        **more,
    )


def caught_up(made, spark):
    return made.run(until="caught-up", session=spark, fail_fast=True)


def values(bootstrap, *topics, **how):
    return [json.loads(record.value()) for record in read_committed(bootstrap, *topics, **how)]


def ids(bootstrap, *topics, **how):
    return sorted(row["id"] for row in values(bootstrap, *topics, **how))


# The two ways, and what a record is made of


@pytest.mark.parametrize(
    ("transform", "way"),
    [(lambda rows: rows, "each task produces"), (lambda rows: rows.repartition(3), "the driver produces")],
)
def test_the_plan_decides_which_way_and_check_says_it(filled, topic, spark, transform, way):
    from headrace.engine.source_readers import SourceReaders
    from headrace.engine.transform_check import dry_run

    source, target = filled(), topic(partitions=3)
    sink = sinks.Kafka(source.bootstrap, target.name)
    made = pipeline(source, sink, transform=transform)
    assert sink.describe_write(dry_run(SourceReaders.of(spark, made), transform), cached=False).startswith(way)

    caught_up(made, spark)
    source.produce([{"id": n, "name": "later"} for n in range(200, 300)])
    caught_up(made, spark)

    assert ids(target.bootstrap, target.name) == list(range(300))
    with made.store.open(made.name) as store:
        assert sum(store.load().offsets.values()) == 300


def test_keys_partitions_headers_and_tombstones_go_over(filled, topic, spark):
    source, target = topic(partitions=1), topic(partitions=4)
    source.produce([{"id": 1, "name": "a"}], key=b"k1", headers=[("h", b"1"), ("none", None)])
    source.produce([None], key=b"k2")
    sink = sinks.Kafka(
        source.bootstrap, target.name, key="_kafka.key", partition="_kafka.partition", headers="_kafka.headers"
    )
    caught_up(pipeline(source, sink), spark)

    first, second = read_committed(target.bootstrap, target.name)
    assert (first.key(), json.loads(first.value()), first.partition()) == (b"k1", {"id": 1, "name": "a"}, 0)
    assert first.headers() == [("h", b"1"), ("none", None)]
    assert (second.key(), second.value()) == (b"k2", None)


def test_a_key_goes_to_the_partition_where_java_producers_send_it(topic, filled, spark):
    source, ours, theirs = filled(), topic(partitions=7), topic(partitions=7)
    caught_up(pipeline(source, sinks.Kafka(source.bootstrap, ours.name, key="name", headers={"n": "id"})), spark)
    keyed = spark.range(200).selectExpr("concat('n', id % 3) AS key", "'x' AS value")
    keyed.write.format("kafka").option("kafka.bootstrap.servers", source.bootstrap).option("topic", theirs.name).save()

    def where(name):
        return {record.key(): record.partition() for record in read_committed(source.bootstrap, name)}

    assert where(ours.name) == where(theirs.name)
    assert {header for record in read_committed(source.bootstrap, ours.name) for header, _ in record.headers()} == {"n"}


def test_a_column_can_name_the_topic_and_is_left_out_of_the_value(filled, topic, spark):
    source, names = filled(), [topic(partitions=1).name for _ in range(3)]
    case = " ".join(f"WHEN 'n{number}' THEN '{name}'" for number, name in enumerate(names))
    made = pipeline(
        source,
        sinks.Kafka(source.bootstrap, topic_column="Target", topics=names),
        transform=lambda rows: rows.selectExpr("id", f"CASE name {case} END AS target", "_kafka"),
    )
    caught_up(made, spark)
    for number, name in enumerate(names):
        assert ids(source.bootstrap, name) == [n for n in range(200) if n % 3 == number]
    assert values(source.bootstrap, names[0])[0].keys() == {"id"}


def test_a_time_as_a_key_has_its_offset(topic, spark):
    source, target = topic(partitions=1), topic(partitions=1)
    source.produce([{"at": "2024-10-27T00:30:00Z"}, {"at": "2024-10-27T01:30:00Z"}])
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        caught_up(pipeline(source, sinks.Kafka(source.bootstrap, target.name, key="at"), "at TIMESTAMP"), spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [record.key() for record in read_committed(target.bootstrap, target.name)] == [
        b"2024-10-27T02:30:00.000000+02:00",
        b"2024-10-27T02:30:00.000000+01:00",
    ]


def test_text_and_bytes_go_over_as_they_are(topic, spark):
    source, target = topic(partitions=1), topic(partitions=1)
    raw = [b"\x00\xff", b"", b"text"]
    source.produce(raw)
    made = hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:12]}",
        source=hr.Kafka(source.bootstrap, topics=[source.name]),
        sink=sinks.Kafka(source.bootstrap, target.name, format=hr.Bytes()),
        guarantee="exactly-once",
    )
    caught_up(made, spark)
    assert [record.value() for record in read_committed(target.bootstrap, target.name)] == raw


def test_rows_that_the_format_cannot_write_are_refused_before_anything_is_read(filled, topic, spark):
    source = filled()
    made = pipeline(source, sinks.Kafka(source.bootstrap, topic().name, format=hr.Text()))
    with pytest.raises(ConfigError, match=r"Text\(\) writes one column"):
        caught_up(made, spark)
    unknown = pipeline(source, sinks.Kafka(source.bootstrap, topic().name, key="user"))
    with pytest.raises(ConfigError, match="no column user"):
        caught_up(unknown, spark)


# What a topic does not take


def test_a_topic_that_is_not_there_is_made_only_with_create(filled, spark):
    source, name = filled(), f"made-{uuid.uuid4().hex[:8]}"
    with pytest.raises(ConfigError, match="there is no topic") as refused:
        caught_up(pipeline(source, sinks.Kafka(source.bootstrap, name)), spark)
    assert "create=True" in refused.value.hint
    new = {"partitions": 5, "replication": 1, "cleanup.policy": "compact"}
    caught_up(pipeline(source, sinks.Kafka(source.bootstrap, name, key="id", create=new)), spark)
    assert {record.partition() for record in read_committed(source.bootstrap, name)} == set(range(5))
    impossible = sinks.Kafka(source.bootstrap, f"{name}-3", create={"replication": 3})
    with pytest.raises(ConfigError, match=f"refuses the creation of topic {name}-3"):
        caught_up(pipeline(source, impossible), spark)


def test_records_that_a_topic_does_not_take_stop_the_run_or_become_dead_letters(filled, topic, spark):
    rows = [{"id": 0, "name": "good"}, {"id": 1, "name": "x" * 3_000}, {"id": 2, "name": "good"}, {"id": 3}]
    source, target = filled(rows, partition=0), topic(config={"max.message.bytes": "2000", "cleanup.policy": "compact"})
    sink = sinks.Kafka(source.bootstrap, target.name, key="name")
    with pytest.raises(BadRecord, match=rf"{source.name}\[0\] offset 1: a record of .* is too large"):
        caught_up(pipeline(source, sink), spark)
    assert values(target.bootstrap, target.name) == []

    letters = topic(partitions=1)
    apart = pipeline(source, sink, dead_letters=hr.DeadLetters(topic=letters.name))
    caught_up(apart, spark)
    assert ids(target.bootstrap, target.name) == [0, 2]
    reasons = {
        int(dict(record.headers())["headrace.offset"]): dict(record.headers())["headrace.error"].decode()
        for record in read_committed(source.bootstrap, letters.name)
    }
    assert reasons.keys() == {1, 3}
    assert "too large" in reasons[1]
    assert "compacted" in reasons[3]


@pytest.mark.parametrize("transform", [lambda rows: rows, lambda rows: rows.repartition(2)])
def test_records_that_fit_a_topic_one_by_one_fit_it_together(filled, topic, spark, transform):
    rows = [{"id": n, "name": os.urandom(300).hex()} for n in range(20)]
    source, target = filled(rows, partition=0), topic(partitions=1, config={"max.message.bytes": "1000"})
    sink = sinks.Kafka(source.bootstrap, target.name)
    caught_up(pipeline(source, sink, transform=transform), spark)
    assert ids(target.bootstrap, target.name) == list(range(20))


def test_topics_named_by_rows_take_what_each_of_them_allows(filled, topic, spark):
    source = filled([{"id": 1, "name": "a"}], partition=0)
    wide, narrow = topic(config={"max.message.bytes": "3000000"}), topic(config={"max.message.bytes": "20000"})
    large = pipeline(
        source,
        sinks.Kafka(source.bootstrap, topic_column="to", topics=[wide.name]),
        transform=lambda found: found.selectExpr("repeat(uuid(), 40000) AS name", f"'{wide.name}' AS to", "_kafka"),
    )
    caught_up(large, spark)
    assert len(read_committed(source.bootstrap, wide.name)) == 1
    small = pipeline(
        source,
        sinks.Kafka(source.bootstrap, topic_column="to", topics=[narrow.name], options={"batch.size": "50000"}),
        transform=lambda found: found.selectExpr("id", f"'{narrow.name}' AS to", "_kafka"),
    )
    with pytest.raises(ConfigError, match=r"20,000 bytes at once, got batch\.size=50000") as refused:
        caught_up(small, spark)
    assert "batch.size" in refused.value.hint


def test_a_topic_in_a_column_that_is_not_there_and_a_partition_too_high_are_dead_letters(filled, topic, spark):
    source, target, letters = filled(), topic(partitions=2), topic(partitions=1)
    made = pipeline(
        source,
        sinks.Kafka(source.bootstrap, topic_column="to", topics=[target.name, "nowhere-to-be-found"], partition="at"),
        transform=lambda rows: rows.selectExpr(
            "id",
            f"IF(id = 5, 'nowhere-to-be-found', '{target.name}') AS to",
            "CASE id WHEN 6 THEN 2 WHEN 7 THEN 4294967296 ELSE 0 END AS at",
            "_kafka",
        ),
        dead_letters=hr.DeadLetters(topic=letters.name),
    )
    caught_up(made, spark)
    assert ids(target.bootstrap, target.name) == [n for n in range(200) if n not in (5, 6, 7)]
    assert sorted(json.loads(r.value())["id"] for r in read_committed(source.bootstrap, letters.name)) == [5, 6, 7]


def test_a_sink_on_the_sources_cluster_is_found_by_its_id_whatever_the_address(filled):
    source = filled()
    other = f"localhost:{source.bootstrap.rpartition(':')[2]}"
    assert other != source.bootstrap
    with pytest.raises(ConfigError, match=f"rows written to {source.name} would be read again"):
        refuse_loops(pipeline(source, sinks.Kafka(other, source.name)))
    with pytest.raises(ConfigError, match="would be read again"):
        refuse_loops(pipeline(source, sinks.Fanout([sinks.Kafka(other, topic_column="to", topics=[source.name])])))
    by_pattern = sinks.Kafka(other, topic_column="to", pattern=".*")
    refuse_loops(pipeline(source, by_pattern))
    assert "the record would come back" in by_pattern._allowed.rejection_reason(source.name)
    refuse_loops(pipeline(source, sinks.Kafka(other, "elsewhere")))
    looked = check(pipeline(source, sinks.Kafka(other, source.name)), {})
    assert "would be read again" in looked.errors[0].message


@pytest.mark.parametrize("letters", [False, True], ids=["stops", "dead letters"])
def test_rows_name_allowed_topics_only_and_never_one_that_the_pipeline_reads(filled, topic, spark, letters):
    """Rows 1 to 5 name a topic outside the pattern, an internal one, the source, one over the limit, and the one of the
    dead letters."""
    source, dead, good, prefix = filled(), topic(partitions=1), topic(partitions=1), f"out-{uuid.uuid4().hex[:8]}"
    bad = {
        1: ("elsewhere", "expected a topic that matches"),
        2: ("__consumer_offsets", "expected a topic that matches"),
        3: (source.name, "the record would come back"),
        4: (f"{prefix}.c", "max_topics=3 match the pattern already"),
        5: (dead.name, "has its dead letters there"),
    }
    case = " ".join(f"WHEN {number} THEN '{name}'" for number, (name, _) in bad.items())
    kept = "id < 6" if letters else "id IN (0, 3)"
    made = pipeline(
        source,
        sinks.Kafka(
            source.bootstrap,
            topic_column="to",
            pattern=rf"{prefix}\..*|{good.name}|{source.name}|{dead.name}",
            max_topics=3,  # three match already
            create={"partitions": 1},
        ),
        transform=lambda rows: rows.where(kept).selectExpr(
            "id", f"CASE id {case} ELSE '{good.name}' END AS to", "_kafka"
        ),
        dead_letters=hr.DeadLetters(topic=dead.name) if letters else None,
    )
    if not letters:
        with pytest.raises(BadRecord, match="the pipeline reads the topic"):
            caught_up(made, spark)
        return
    caught_up(made, spark)
    assert len(read_committed(source.bootstrap, source.name)) == 200
    found = {json.loads(r.value())["id"]: dict(r.headers()) for r in read_committed(source.bootstrap, dead.name)}
    assert found.keys() == bad.keys()
    assert all(why.encode() in b" ".join(v or b"" for v in found[number].values()) for number, (_, why) in bad.items())
    assert ids(source.bootstrap, good.name) == [0]


def test_names_that_kafka_refuses_are_dead_letters_and_stop_nothing(topic, spark):
    """To Kafka, names that differ in `.` and `_` alone are one; and rows choose them."""
    source, dead, prefix = topic(partitions=1), topic(partitions=1), f"out-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}.a", f"{prefix}_a", ".", "..", f"{prefix}.b"]
    source.produce([{"id": number, "name": name} for number, name in enumerate(names)])
    made = pipeline(
        source,
        sinks.Kafka(source.bootstrap, topic_column="name", pattern=rf"{prefix}.*|\.+", create={"partitions": 1}),
        dead_letters=hr.DeadLetters(topic=dead.name),
    )
    caught_up(made, spark)
    found = {json.loads(r.value())["id"]: dict(r.headers()) for r in read_committed(source.bootstrap, dead.name)}
    assert found.keys() == {1, 2, 3}
    assert b"collides with existing topic" in found[1]["headrace.error"]
    assert all(b"expected a topic that matches" in found[number]["headrace.error"] for number in (2, 3))
    assert ids(source.bootstrap, names[0], names[4]) == [0, 4]


def test_topics_of_the_source_are_refused_by_name_when_the_pipeline_is_made(topic):
    source = topic()
    with pytest.raises(ConfigError, match="would be read again"):
        pipeline(source, sinks.Kafka(source.bootstrap, topic_column="to", topics=["a", source.name]))


def test_the_timestamp_of_the_source_is_kept_and_columns_are_left_out_of_the_value(topic, spark):
    source, kept, given = topic(partitions=1), topic(partitions=1), topic(partitions=1)
    source.produce([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    times = [record.timestamp()[1] for record in read_committed(source.bootstrap, source.name)]
    sink = sinks.Kafka(
        source.bootstrap, kept.name, timestamp="_kafka.timestamp", key="id", headers={"n": "name"}, exclude=["ID"]
    )
    caught_up(pipeline(source, sink), spark)
    found = read_committed(source.bootstrap, kept.name)
    assert [record.timestamp()[1] for record in found] == times
    assert [(r.key(), json.loads(r.value()), r.headers()) for r in found] == [
        (b"1", {"name": "a"}, [("n", b"a")]),
        (b"2", {"name": "b"}, [("n", b"b")]),
    ]

    def transform(rows):
        return rows.selectExpr("id", "IF(id = 1, 1700000000123L, NULL) AS at", "_kafka")

    caught_up(pipeline(source, sinks.Kafka(source.bootstrap, given.name, timestamp="at"), transform=transform), spark)
    first, second = read_committed(source.bootstrap, given.name)
    assert first.timestamp()[1] == 1_700_000_000_123
    assert second.timestamp()[1] >= max(times)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp": "name"}, "expected a TIMESTAMP, or milliseconds as BIGINT, got string"),
        ({"exclude": ["nothing"]}, "the rows have no column nothing"),
        ({"exclude": ["id", "name"]}, "leaves no column for the value"),
    ],
)
def test_columns_that_cannot_be_timestamps_or_left_out_are_refused_before_anything_is_read(
    filled, topic, spark, options, message
):
    source = filled()
    with pytest.raises(ConfigError, match=message):
        caught_up(pipeline(source, sinks.Kafka(source.bootstrap, topic().name, **options)), spark)


def test_a_transaction_longer_than_the_broker_allows_is_refused_before_the_start(kafka, topic):
    sink = sinks.Kafka(kafka.bootstrap, topic().name, options={"transaction.timeout.ms": 1_000_000})
    with pytest.raises(ConfigError, match=r"transaction\.timeout\.ms=1000000 is more than Kafka .* allows: 900000"):
        sink.open("slow")
    sink.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected topic or topic_column=, one of both"),
        ({"topic": "a", "topic_column": "b"}, "expected topic or topic_column=, one of both"),
        ({"topic_column": "b"}, "expected topics= or pattern="),
        ({"topic_column": "b", "topics": ["a"], "pattern": "a"}, "expected topics= or pattern="),
        ({"topic_column": "b", "topics": "a"}, "expected a list of topic names"),
        ({"topic_column": "b", "topics": ["__consumer_offsets"]}, "expected a list of topic names"),
        ({"topic_column": "b", "pattern": "("}, "expected a regular expression"),
        ({"topic_column": "b", "pattern": "a", "max_topics": 0}, "max_topics: expected a whole number"),
        ({"topic": "a", "topics": ["a"]}, "need topic_column="),
        ({"topic": "a", "exclude": "id"}, "expected a list of columns"),
        ({"topic": "a", "options": {"transactional.id": "x"}}, "set by Headrace"),
        ({"topic": "a", "create": {"partitions": 0}}, "partitions: expected a whole number"),
        ({"topic": "a", "format": "json"}, "not a format"),
    ],
)
def test_arguments_that_cannot_work_are_refused_when_the_sink_is_made(arguments, message):
    with pytest.raises(ConfigError, match=message):
        sinks.Kafka("localhost:9092", **arguments)


def test_a_broker_that_does_not_answer_is_tried_again(topic):
    with pytest.raises(RetriableError, match="does not answer"):
        sinks.Kafka("127.0.0.1:1", "t").open("p")


# What tasks do


class Work:
    """One partition's work as a task has it, called here without Spark."""

    def __init__(self, kafka, source, target, until):
        self.sink = sinks.Kafka(kafka.bootstrap, target.name).open(f"w-{uuid.uuid4().hex[:8]}")
        self.sink.offsets.load()
        at = TopicPartition(source.name, 0)
        self.sink.offsets.commit(Batch(0, (Range(at, 0, 0),)))
        before = self.sink.offsets._fetch()[at]
        after, transactional_id = CommittedOffset(until, "after"), self.sink.offsets.transactional_id(at)
        part = PartitionWrite(Range(at, 0, until), source.name, before, after, transactional_id)
        self.id = part.transactional_id
        self.task = TransactionalProduceTask(self.sink._current_target(), self.sink.offsets.group, (part,))
        self.at = at

    def call(self, batches):
        return tasks.report_of(self.task, batches)

    def offset(self):
        return self.sink.offsets.read()[0].progress.offsets[self.at]


def records(*numbers):
    values = pa.array([json.dumps({"id": n}).encode() for n in numbers])
    return pa.RecordBatch.from_arrays([values, pa.array(numbers)], names=["value", "headrace_row_offset"])


@pytest.fixture
def work(kafka, topic):
    made = []

    def make(until=4):
        target = topic(partitions=1)
        made.append(Work(kafka, topic(partitions=1), target, until))
        return made[-1], target

    yield make
    for one in made:
        one.sink.close()
        tasks.evict((kafka.bootstrap, one.id))


def eventually(question, seconds=30):
    deadline = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_reader_in_the_middle_of_a_batch_sees_nothing_of_an_open_transaction(work):
    one, target = work()
    seen = []

    def batches():
        yield records(0, 1)
        eventually(lambda: ids(target.bootstrap, target.name, isolation="read_uncommitted") == [0, 1])
        seen.append(ids(target.bootstrap, target.name))
        seen.append(one.offset())
        yield records(2, 3)

    assert one.call(batches()).rows == 4
    assert seen == [[], 0]
    assert ids(target.bootstrap, target.name) == [0, 1, 2, 3]
    assert one.offset() == 4


def test_a_task_that_is_repeated_after_it_committed_writes_nothing(work):
    one, target = work()
    assert one.call(iter([records(0, 1, 2, 3)])).rows == 4
    assert one.call(iter([records(0, 1, 2, 3)])).rows == 0
    assert ids(target.bootstrap, target.name) == [0, 1, 2, 3]


def test_of_two_attempts_at_once_the_later_wins_and_the_other_leaves_nothing(work, kafka):
    one, target = work()

    def batches():
        yield records(0, 1)
        kept = tasks.WORKER_CACHE.pop((kafka.bootstrap, one.id))  # the other attempt is in another worker
        assert one.call(iter([records(0, 1, 2, 3)])).rows == 4
        tasks.evict((kafka.bootstrap, one.id))
        tasks.WORKER_CACHE[kafka.bootstrap, one.id] = kept
        yield records(2, 3)

    with pytest.raises(Fenced):
        one.call(batches())
    assert ids(target.bootstrap, target.name) == [0, 1, 2, 3]


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_producer_of_an_earlier_batch_that_a_sibling_has_fenced_is_replaced(work, kafka, pieces):
    one, target = work()
    assert one.call(iter([])).rows == 0  # leaves a producer behind, and the offset at 4
    first = one.task.writes[0]
    after = PartitionWrite(
        Range(one.at, 4, 8), first.topic, first.after, CommittedOffset(8, "later"), first.transactional_id
    )
    sibling = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": one.id})
    sibling.init_transactions(30)
    again = TransactionalProduceTask(one.task.target, one.task.group, (after,))
    assert again(iter([records(*range(n, n + 4)) for n in range(pieces)])).rows == 4 * pieces
    assert len(ids(target.bootstrap, target.name)) == 4 * pieces
    assert one.offset() == 8


def test_a_task_whose_offset_has_moved_refuses(work):
    one, target = work()
    one.sink.offsets.commit(Batch(1, (Range(one.at, 0, 2),)))
    with pytest.raises(OffsetConflict, match="it has committed offset 2"):
        raise_reported(one.call(iter([records(0, 1)])))
    assert ids(target.bootstrap, target.name) == []


def raise_reported(report):
    from headrace import errors

    kind, message, _ = report.error
    raise getattr(errors, kind)(message)


def test_a_task_that_begins_after_another_run_took_over_changes_nothing(work, kafka):
    """Queued, or repeated by Spark: its producer is newer than the successor, and the offset stands where it starts."""
    one, target = work()
    one.sink.offsets.set_lease(RunLease("host", 1, 0.0, 0.0))
    one.task = replace(one.task, writes=(replace(one.task.writes[0], before=one.sink.offsets._fetch()[one.at]),))
    with sinks.Kafka(kafka.bootstrap, target.name).open(one.sink.offsets.group) as successor:
        assert successor.offsets.load().offsets == {one.at: 0}
        with pytest.raises(OffsetConflict, match="taken over"):
            raise_reported(one.call(iter([records(0, 1, 2, 3)])))
        successor.offsets.set_lease(RunLease("host", 2, 1.0, 1.0))
        with pytest.raises(OffsetConflict, match="taken over"):
            one.sink.offsets.set_lease(RunLease("host", 1, 0.0, 9.0))
        assert successor.offsets.read()[0].run == RunLease("host", 2, 1.0, 1.0)
        assert successor.offsets.load().offsets == {one.at: 0}
    assert ids(target.bootstrap, target.name) == []


def test_a_run_whose_tasks_may_be_at_work_still_does_not_sign_off(work):
    one, _ = work()
    one.sink.offsets.set_lease(RunLease("host", 1, 0.0, 0.0))
    one.sink.offsets._tasks_may_run = True
    one.sink.offsets.set_lease(None)
    assert one.sink.offsets.read()[0].run is not None
    one.sink.offsets.load()
    one.sink.offsets.set_lease(None)
    assert one.sink.offsets.read()[0].run is None


def test_a_transaction_of_the_driver_that_somebody_aborts_costs_a_repeat(work, kafka, spark):
    one, target = work()
    one.sink.offsets.set_lease(RunLease("host", 1, 0.0, 0.0))
    aborting = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": f"headrace-offsets-{one.sink.offsets.group}"}
    )
    aborting.init_transactions(30)
    rows = frame(spark, numbered(0, 4))
    with pytest.raises(RetriableError, match="another process ended the transaction"):
        one.sink.write(Batch(1, (Range(one.at, 0, 4),)), rows)
    one.sink.offsets.load()
    one.sink.write(Batch(1, (Range(one.at, 0, 4),)), rows)
    assert ids(target.bootstrap, target.name) == [0, 1, 2, 3]


def test_options_that_librdkafka_refuses_are_a_mistake_and_not_retried(kafka, topic):
    for options in ({"acks": "1"}, {"linger.ms": "abc"}, {"no.such.option": "1"}):
        with pytest.raises(ConfigError), sinks.Kafka(kafka.bootstrap, topic().name, options=options).open("p") as sink:
            sink.offsets.load()


def test_a_topic_recreated_under_a_run_is_of_this_cluster_still(work):
    one, _ = work()
    source = one.task.writes[0].range.at.topic
    Topic.recreate(existing(one.sink.offsets.bootstrap, source))
    with suppress(HeadraceError):
        one.sink.offsets.set_lease(RunLease("host", 1, 0.0, 0.0))
    admin = AdminClient({"bootstrap.servers": one.sink.offsets.bootstrap})
    assert not [
        name for name in admin.list_topics(timeout=10).topics if name.startswith("headrace.") and source in name
    ]


def existing(bootstrap, name):
    found = Topic.__new__(Topic)
    found.bootstrap, found.name, found.partitions, found.copies = bootstrap, name, 1, 1
    found._admin = AdminClient({"bootstrap.servers": bootstrap})
    return found


def test_groups_and_topics_with_dashes_and_dots_are_distinguished():
    def names(group, topic):
        offsets = sinks.Kafka("localhost:9092", "t").offsets
        offsets._group = SimpleNamespace(name=group)
        return offsets.transactional_id(TopicPartition(topic, 0)), placeholder_prefix(group) + topic

    assert not set(names("orders", "eu-clicks")) & set(names("orders-eu", "clicks"))
    assert not set(names("a", "b.x")) & set(names("a.b", "x"))


def test_rows_that_a_transform_moved_by_itself_are_not_committed_by_their_task(filled, spark):
    from headrace.engine.range_reader import RangeReader
    from headrace.spark.task_alignment import tasks_match_ranges

    source = filled()
    ranges = tuple(Range(TopicPartition(source.name, number), 0, 100) for number in range(2))
    rows = RangeReader(spark, source.bootstrap, {}, "narrow").rows(ranges).select("value")
    moved = spark.createDataFrame(rows.rdd.map(lambda row: (len(row.value), row)).partitionBy(2).values(), rows.schema)
    assert tasks_match_ranges(rows, 2)
    assert not tasks_match_ranges(moved, 2)


# What is left of a run


def test_a_transaction_that_a_dead_run_left_is_ended_when_the_next_one_starts(work, kafka):
    one, target = work()
    one.sink.offsets.set_lease(RunLease("host", 1, 0.0, 0.0))
    left = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": one.id})
    left.init_transactions(30)
    left.begin_transaction()
    left.produce(target.name, b"never")
    left.flush(30)
    with pytest.raises(AssertionError, match="not reached"):  # a reader waits at it
        after_a_record(target)
    with sinks.Kafka(kafka.bootstrap, target.name).open(one.sink.offsets.group) as later:
        later.offsets.load()
    assert after_a_record(target) == [b"seen"]


def after_a_record(target):
    """What a reader gets after one more record was produced, outside of any transaction."""
    if not target.acknowledged:
        target.produce([b"seen"])
    found = [record.value() for record in read_committed(target.bootstrap, target.name)]
    assert found, "the end was not reached"
    return found


def test_left_over_transactions_are_listed_and_aborted_by_the_command_line(kafka, topic):
    target, name = topic(partitions=1), f"headrace-left-{uuid.uuid4().hex[:8]}"
    left = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
    left.init_transactions(30)
    left.begin_transaction()
    left.produce(target.name, b"never")
    left.flush(30)
    target.produce([b"seen"])
    asked = ["--bootstrap", kafka.bootstrap, "--prefix", name]

    def command(*words):
        done = CliRunner().invoke(app, ["transactions", *words])
        assert done.exit_code == 0, done.output
        return done.output

    (listed,) = json.loads(command("list", *asked, "--json"))
    assert (listed["id"], listed["state"], listed["partitions"]) == (name, "Ongoing", [[target.name, 0]])
    assert "1 open transaction" in command("list", *asked)
    assert "add --execute to do it" in command("abort", "--all", *asked)
    assert read_committed(target.bootstrap, target.name) == []
    assert "1 transaction aborted" in command("abort", name, *asked, "--execute")
    assert [record.value() for record in read_committed(target.bootstrap, target.name)] == [b"seen"]
    assert json.loads(command("list", *asked, "--json")) == []


# Two clusters


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    with dev.Kafka(tmp_path_factory.mktemp("other-kafka"), heap="384m") as server:
        yield server


def test_between_two_clusters_offsets_stand_with_the_records(filled, other, spark):
    source = filled()
    target = Topic(other.bootstrap, "target", 2, {})
    Topic(other.bootstrap, source.name, 1, {})  # of the same name, and another topic
    made = pipeline(source, sinks.Kafka(other.bootstrap, "target"), limits=hr.Limits(max_records=60))
    caught_up(made, spark)
    source.produce([{"id": n} for n in range(200, 300)])
    source.grow(3)
    source.produce([{"id": n} for n in range(300, 400)], partition=2)
    caught_up(made, spark)

    assert ids(other.bootstrap, target.name) == list(range(400))
    with made.store.open(made.name) as store:
        offsets = store.load().offsets
    assert sum(offsets.values()) == 400
    assert {at.topic for at in offsets} == {source.name}
