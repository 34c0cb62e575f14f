"""Which records a source reads, from real brokers: subscriptions, starts, limits, several sources, the loop in hand."""

import json
import os
import signal
import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

import headrace as hr
from headrace import dev, events, sinks, stores
from headrace.engine.range_splitting import MIN_SPLIT_RECORDS
from headrace.errors import ConfigError, RetriableError
from headrace.kafka.cluster import Cluster
from headrace.testing.committed_records import read_committed
from headrace.types import TopicPartition
from support.background_run import BackgroundRun


@pytest.fixture(scope="module")
def second_kafka(tmp_path_factory):
    with dev.Kafka(tmp_path_factory.mktemp("second-kafka"), heap="256m") as server:
        yield server


NUMBERS = hr.Json("n INT")


def numbers(first, last):
    return [{"n": number} for number in range(first, last)]


def pipeline(source, sink=None, **changes):
    return hr.Pipeline(
        **{
            "name": f"p-{uuid.uuid4().hex[:8]}",
            "source": source,
            "sink": sink or sinks.Memory(),
            "guarantee": "at-least-once",
            "offsets": stores.Memory(),
            **changes,
        }
    )


def test_a_pattern_picks_up_a_new_topic_while_it_runs(spark, topic):
    mark = f"test-{uuid.uuid4().hex[:6]}"
    one = topic(partitions=1, name=f"{mark}.one")
    one.produce(numbers(0, 5))
    sink = sinks.Memory()
    source = hr.Kafka(one.bootstrap, pattern=rf"{mark}\..*", format=NUMBERS, start="latest", refresh=0.2)
    with BackgroundRun(pipeline(source, sink), spark) as live:
        live.wait(lambda: live.all(events.CaughtUp))
        other = topic(partitions=2, name=f"{mark}.two")
        other.produce(numbers(10, 14))
        live.wait(lambda: len(sink.rows) >= 4)
    assert sorted(row["n"] for row in sink.rows) == [10, 11, 12, 13]


def test_partitions_that_are_added_are_read_from_their_beginning(spark, topic):
    where = topic(partitions=1)
    sink = sinks.Memory()
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS, start="latest", refresh=0.2)
    with BackgroundRun(pipeline(source, sink), spark) as live:
        live.wait(lambda: live.all(events.CaughtUp))
        admin = AdminClient({"bootstrap.servers": where.bootstrap})
        admin.create_partitions([NewPartitions(where.name, 3)])[where.name].result()
        producer = Producer({"bootstrap.servers": where.bootstrap})
        producer.produce(where.name, b'{"n": 7}', partition=2)
        assert producer.flush(30) == 0
        live.wait(lambda: sink.rows)
    assert sink.rows == [{"n": 7}]
    assert {at.partition for event in live.all(events.PartitionsFound) for at in event.positions} == {0, 1, 2}


def test_assigned_partitions_are_read_alone_and_the_rest_is_reported(spark, topic):
    where = topic(partitions=3)
    where.produce(numbers(0, 9))
    sink, seen = sinks.Memory(), []
    source = hr.Kafka(where.bootstrap, partitions={where.name: [0, 2]}, format=NUMBERS)
    made = pipeline(source, sink, transform=lambda rows: rows.selectExpr("n", "_kafka.partition AS p"))
    made.run(until="caught-up", session=spark, observer=seen.append)
    assert {row["p"] for row in sink.rows} == {0, 2}
    (left,) = [event for event in seen if isinstance(event, events.PartitionsLeftOut)]
    assert left.partitions == (TopicPartition(where.name, 1),)
    with pytest.raises(ConfigError, match="has no partition 5: it has 3"):
        pipeline(hr.Kafka(where.bootstrap, partitions={where.name: [5]})).run(until="caught-up", session=spark)


def test_a_time_starts_at_the_first_record_since(spark, topic):
    where = topic(partitions=1, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": where.bootstrap})
    for number in range(10):
        producer.produce(where.name, b'{"n": %d}' % number, timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(30) == 0
    sink = sinks.Memory()
    start = datetime.fromtimestamp(1_700_000_006.5, UTC)
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS, start=start)
    pipeline(source, sink).run(until="caught-up", session=spark)
    assert [row["n"] for row in sink.rows] == [7, 8, 9]


def test_old_and_new_records_by_the_start_and_on_restart_the_position_wins(spark, topic):
    where = topic(partitions=1)
    where.produce(numbers(0, 10))
    found = {}
    for start in ("earliest", "latest"):
        sink, offsets = sinks.Memory(), stores.Memory()
        source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS, start=start)
        made = pipeline(source, sink, offsets=offsets)
        made.run(until="caught-up", session=spark)
        found[start] = made
    where.produce(numbers(10, 15))
    for made in found.values():
        made.run(until="caught-up", session=spark)
    assert [len(made.sink.rows) for made in found.values()] == [15, 5]


def test_two_pipelines_on_one_topic_both_read_all_of_it(spark, topic):
    where = topic(partitions=2)
    where.produce(numbers(0, 20))
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    made = [pipeline(source), pipeline(source)]
    for one in made:
        one.run(until="caught-up", session=spark)
    assert [sorted(row["n"] for row in one.sink.rows) for one in made] == [list(range(20))] * 2


def test_bytes_are_weighed_and_limit_a_batch(spark, topic):
    where = topic(partitions=2)
    where.produce([{"n": number, "padding": "x" * 980} for number in range(400)])
    sizes = []
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    limits = hr.Limits(max_bytes=50_000, first_records=20)
    made = pipeline(source, limits=limits)
    made.run(
        until="caught-up",
        session=spark,
        observer=lambda event: sizes.append(len(event.batch)) if isinstance(event, events.BatchDone) else None,
    )
    assert sizes[0] == 20
    assert all(45 <= size <= 50 for size in sizes[1:-1])
    assert len(made.sink.rows) == 400


def test_limits_of_a_batch_are_never_passed(spark, topic):
    where = topic(partitions=1)
    where.produce(numbers(0, 250))
    sizes = []
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    pipeline(source, limits=hr.Limits(max_records=100)).run(
        until="caught-up",
        session=spark,
        observer=lambda event: sizes.append(len(event.batch)) if isinstance(event, events.BatchDone) else None,
    )
    assert sizes == [100, 100, 50]


class Tasks(sinks.Sink):
    """How many tasks read a batch, and the offsets in the order in which they come."""

    def __init__(self, whole):
        self.needs_one_task_per_partition = whole
        self.tasks, self.offsets = [], []

    def write(self, batch, rows):
        self.tasks.append(rows.rdd.getNumPartitions())
        self.offsets += [row[0] for row in rows.select("_kafka.offset").collect()]


def test_a_long_range_is_read_by_several_tasks_unless_the_sink_wants_it_whole(spark, topic):
    where = topic(partitions=1)
    producer = Producer(
        {"bootstrap.servers": where.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 500_000}
    )
    count = 4 * MIN_SPLIT_RECORDS
    for _ in range(count):
        producer.produce(where.name, b"x")
    assert producer.flush(60) == 0
    cores = spark.sparkContext.defaultParallelism
    for whole, tasks in ((True, 1), (False, cores)):
        sink = Tasks(whole)
        pipeline(hr.Kafka(where.bootstrap, topics=[where.name]), sink).run(until="caught-up", session=spark)
        assert sink.tasks == [tasks]
        assert sink.offsets == list(range(count))


def test_many_short_ranges_are_read_by_few_tasks(spark, topic):
    where = topic(partitions=60)
    where.produce(numbers(0, 120))
    sink = Tasks(whole=False)
    pipeline(hr.Kafka(where.bootstrap, topics=[where.name]), sink).run(until="caught-up", session=spark)
    assert sink.tasks == [4 * spark.sparkContext.defaultParallelism]
    assert len(sink.offsets) == 120


# skipping


def sink_and_offsets(kind, request, tmp_path):
    match kind:
        case "duckdb":
            return sinks.DuckDB(tmp_path / "out.duckdb", table="numbers", create=True), None
        case "postgres":
            dsn = request.getfixturevalue("postgres").address
            return sinks.Postgres(dsn, f"t_{uuid.uuid4().hex[:8]}", create=True), None
        case "kafka":
            bootstrap = request.getfixturevalue("kafka").bootstrap
            return sinks.Kafka(bootstrap, f"out-{uuid.uuid4().hex[:8]}", create=True), None
        case "offsets in kafka":
            return sinks.Parquet(tmp_path / "out"), stores.Kafka(request.getfixturevalue("kafka").bootstrap)
    return sinks.Parquet(tmp_path / "out"), stores.SQLite(tmp_path / "offsets.db")


@pytest.mark.parametrize("kind", ["duckdb", "postgres", "kafka", "offsets in kafka", "offsets in sqlite"])
def test_what_lags_too_much_is_skipped_in_the_middle_of_a_run_wherever_the_offsets_are(
    spark, topic, kind, request, tmp_path
):
    where = topic(partitions=1)
    where.produce(numbers(0, 20))
    sink, offsets = sink_and_offsets(kind, request, tmp_path)
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS, max_lag=30)
    made = pipeline(source, sink, offsets=offsets, guarantee="exactly-once")
    with BackgroundRun(made, spark) as live:
        live.wait(lambda: live.all(events.CaughtUp))
        where.produce_in_transaction(numbers(20, 220), commit=True)  # all of them at once, and a mark behind them
        live.wait(lambda: len(live.all(events.BatchDone)) == 2)
    assert not live.all(events.Retrying)
    (gap,) = live.all(events.GapFound)
    assert (gap.lost.start, gap.lost.until) == (20, 191)
    with made.store.open(made.name) as store:
        assert list(store.load().offsets.values()) == [221]
        assert [change.action for change in store.history()] == ["gap"]


# several sources


def test_sources_are_decoded_apart_and_known_to_sql_by_their_names(spark, topic, tmp_path):
    clicks, users = topic(partitions=2), topic(partitions=1)
    clicks.produce([{"user": "ann", "page": "/"}, {"user": "bob", "page": "/a"}, {"user": "eve", "page": "/b"}])
    users.produce([b"ann,DE", b"bob,FR"])
    file = tmp_path / "joined.toml"
    file.write_text(
        f"""
name = "joined"
guarantee = "exactly-once"
[sources.clicks]
kafka = "{clicks.bootstrap}"
topics = ["{clicks.name}"]
format = {{ json = "user STRING, page STRING" }}
[sources.users]
kafka = "{users.bootstrap}"
topics = ["{users.name}"]
format = "text"
[transform]
sql = '''SELECT c.user, page, split(u.value, ',')[1] AS country
         FROM clicks c LEFT JOIN users u ON split(u.value, ',')[0] = c.user'''
[sink]
duckdb = "{tmp_path}/out.duckdb"
table = "joined"
create = true
"""
    )
    from headrace.runtime.config import load

    load(str(file)).pipeline.run(until="caught-up", session=spark)
    import duckdb

    with duckdb.connect(str(tmp_path / "out.duckdb")) as database:
        found = database.sql("SELECT user, page, country FROM joined ORDER BY user").fetchall()
    assert found == [("ann", "/", "DE"), ("bob", "/a", "FR"), ("eve", "/b", None)]


def test_two_clusters_with_the_same_topic_merge_and_each_row_says_where_it_came_from(spark, topic, second_kafka):
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    here = topic(partitions=2, name=name)
    there = topic(partitions=1, name=name, bootstrap=second_kafka.bootstrap)
    here.produce(numbers(0, 10))
    there.produce(numbers(100, 107))
    sink, offsets = sinks.Memory(), stores.Memory()
    made = pipeline(
        {
            "east": hr.Kafka(here.bootstrap, topics=[name], format=NUMBERS, cluster="east"),
            "west": hr.Kafka(there.bootstrap, topics=[name], format=NUMBERS, cluster="west"),
        },
        sink,
        offsets=offsets,
        transform=lambda rows: rows["east"].union(rows["west"]).selectExpr("n", "_kafka.topic AS topic"),
    )
    made.run(until="caught-up", session=spark)
    counts = {}
    for row in sink.rows:
        counts[row["topic"]] = counts.get(row["topic"], 0) + 1
    assert counts == {f"east.{name}": 10, f"west.{name}": 7}
    assert {row["n"] for row in sink.rows} == {*range(10), *range(100, 107)}
    there.produce(numbers(107, 109))
    made.run(until="caught-up", session=spark)
    assert len(sink.rows) == 19


def test_two_clusters_are_merged_into_a_topic_of_one_of_them_with_every_record_of_each(spark, topic, second_kafka):
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    east = topic(partitions=2, name=name)
    west = topic(partitions=1, name=name, bootstrap=second_kafka.bootstrap)
    aggregate = topic(partitions=3)
    east.produce(numbers(0, 40))
    west.produce(numbers(100, 130))
    made = pipeline(
        {
            "east": hr.Kafka(east.bootstrap, topics=[name], format=NUMBERS, cluster="east"),
            "west": hr.Kafka(west.bootstrap, topics=[name], format=NUMBERS, cluster="west"),
        },
        sinks.Kafka(aggregate.bootstrap, aggregate.name),
        offsets=None,
        guarantee="exactly-once",
        transform=lambda rows: (
            rows["east"].union(rows["west"]).selectExpr("n", "split(_kafka.topic, '[.]')[0] AS site", "_kafka")
        ),
    )
    made.run(until="caught-up", session=spark, fail_fast=True)
    east.produce(numbers(40, 45))
    made.run(until="caught-up", session=spark, fail_fast=True)
    found = [json.loads(record.value()) for record in read_committed(aggregate.bootstrap, aggregate.name)]
    by_site = {site: sorted(row["n"] for row in found if row["site"] == site) for site in ("east", "west")}
    assert by_site == {"east": list(range(45)), "west": list(range(100, 130))}
    assert len(found) == 75


def test_a_list_of_topics_is_read_and_no_other(spark, topic):
    wanted, other = [topic(partitions=2), topic(partitions=1)], topic(partitions=1)
    for number, where in enumerate([*wanted, other]):
        where.produce(numbers(number * 10, number * 10 + 5))
    sink = sinks.Memory()
    source = hr.Kafka(other.bootstrap, topics=[where.name for where in wanted], format=NUMBERS)
    made = pipeline(source, sink, transform=lambda rows: rows.selectExpr("n", "_kafka.topic AS topic"))
    made.run(until="caught-up", session=spark)
    assert {(row["topic"], row["n"]) for row in sink.rows} == {
        (where.name, first + n) for where, first in zip(wanted, (0, 10), strict=True) for n in range(5)
    }


def test_a_partition_that_is_added_beside_assigned_ones_is_reported_as_unread(spark, topic):
    where = topic(partitions=2)
    where.produce(numbers(0, 4))
    sink, seen = sinks.Memory(), []
    source = hr.Kafka(where.bootstrap, partitions={where.name: [0, 1]}, format=NUMBERS, refresh=0.2)
    made = pipeline(source, sink)
    made.run(until="caught-up", session=spark, observer=seen.append)
    assert not [event for event in seen if isinstance(event, events.PartitionsLeftOut)]
    where.grow(3)
    where.produce(numbers(4, 6), partition=2)
    made.run(until="caught-up", session=spark, observer=seen.append)
    (left,) = [event for event in seen if isinstance(event, events.PartitionsLeftOut)]
    assert left.partitions == (TopicPartition(where.name, 2),)
    assert sorted(row["n"] for row in sink.rows) == [0, 1, 2, 3]
    made = replace(made, source=replace(source, partitions={where.name: [0, 1, 2]}))
    made.run(until="caught-up", session=spark)
    assert sorted(row["n"] for row in sink.rows) == [0, 1, 2, 3, 4, 5]


# the loop in hand


def test_offsets_committed_after_each_batch_are_those_behind_its_last_records(spark, topic):
    where = topic(partitions=4)
    where.produce(numbers(0, 2_500), partition=3)
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    store, steps = stores.Memory(), []
    limits = hr.Limits(max_records=1_000)
    for batch in hr.stream(source, offsets=store, limits=limits, until="caught-up", session=spark):
        last = batch.rows().selectExpr("max(_kafka.offset) AS last").first()["last"]
        batch.commit()
        (at,) = [at for at in store.load().offsets if at.partition == 3]
        steps.append((last, store.load().offsets[at]))
    assert steps == [(999, 1000), (1999, 2000), (2499, 2500)]


def test_the_manual_loop_gives_each_batch_once_and_goes_on_where_it_was(spark, topic, tmp_path):
    where = topic(partitions=2)
    where.produce(numbers(0, 25))
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)

    def loop(**how):
        store = stores.SQLite(tmp_path / "offsets.db")
        return hr.stream(
            source, offsets=store, limits=hr.Limits(max_records=10), until="caught-up", session=spark, **how
        )

    seen = []
    for batch in loop():
        seen += [row["n"] for row in batch.rows().collect()]
        assert sum(len(r) for r in batch.ranges) == len(batch) <= 10
        batch.commit()
    assert sorted(seen) == list(range(25))
    where.produce(numbers(25, 30))
    more = []
    for batch in loop():
        more += [row["n"] for row in batch.rows().collect()]
        batch.commit()
    assert sorted(more) == list(range(25, 30))


def test_a_batch_that_was_not_committed_comes_again_with_the_same_records(spark, topic, tmp_path):
    where = topic(partitions=1)
    where.produce(numbers(0, 10))
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)

    def loop():
        return hr.stream(
            source, offsets=stores.SQLite(tmp_path / "offsets.db"), name="loop", until="caught-up", session=spark
        )

    with pytest.raises(LookupError):
        for batch in loop():
            first = (batch.id, batch.ranges)
            raise LookupError
    where.produce(numbers(10, 20))
    again = []
    for batch in loop():
        again.append((batch.id, batch.ranges, batch.replay))
        batch.commit()
    assert again[0] == (*first, True)
    assert [replay for _, _, replay in again] == [True, False]
    assert again[1][1][0].start == 10


def test_a_forgotten_commit_is_an_error_and_not_a_loss(spark, topic):
    where = topic(partitions=1)
    where.produce(numbers(0, 10))
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    batches = iter(hr.stream(source, offsets=stores.Memory(), until="caught-up", session=spark))
    next(batches)
    with pytest.raises(ConfigError, match="was not committed"):
        next(batches)


def test_a_signal_ends_the_loop_after_the_batch_in_flight(spark, topic):
    where = topic(partitions=1)
    where.produce(numbers(0, 10))
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    done = []
    for batch in hr.stream(source, offsets=stores.Memory(), limits=hr.Limits(max_records=3), session=spark):
        os.kill(os.getpid(), signal.SIGTERM)
        batch.commit()
        done.append(len(batch))
    assert done == [3]


def test_a_bad_record_in_the_loop_is_named(spark, topic):
    from headrace.errors import BadRecord

    where = topic(partitions=1)
    where.produce([b"not json"])
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    with (
        pytest.raises(BadRecord, match="offset 0"),
        hr.stream(source, offsets=stores.Memory(), session=spark) as batches,
    ):
        for batch in batches:
            batch.rows().collect()


def test_a_loop_without_a_place_for_its_offsets_is_refused():
    with pytest.raises(ConfigError, match="offsets: expected"):
        hr.stream(hr.Kafka("k:1", topics=["a"]), offsets="offsets.db")
    with pytest.raises(ConfigError, match=r"source: expected headrace\.kafka\.source\.Kafka"):
        hr.stream("k:1", offsets=stores.Memory())


def test_a_manual_loop_limits_bytes_and_reports_dropped_records(spark, topic):
    where = topic(partitions=1)
    where.produce([b"bad", *({"n": number, "padding": "x" * 980} for number in range(200))])
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("n INT", on_error="drop"))
    sizes, seen = [], []
    for batch in hr.stream(
        source,
        offsets=stores.Memory(),
        limits=hr.Limits(max_bytes=50_000, first_records=20),
        until="caught-up",
        session=spark,
        observer=seen.append,
    ):
        batch.rows().collect()
        sizes.append(len(batch))
        batch.commit()
    assert sizes[0] == 20
    assert all(40 <= size <= 55 for size in sizes[1:-1])
    assert [event.count for event in seen if isinstance(event, events.BadRecordsDropped)] == [1]


def test_dead_letters_of_several_sources_go_back_where_they_came_from(spark, topic, second_kafka, tmp_path):
    from headrace.tools.dead_letters import DeadLetterAdmin

    here, there = topic(partitions=1), topic(partitions=1, bootstrap=second_kafka.bootstrap)
    for where in (here, there):
        where.produce([b"bad", {"n": 1}])
    made = pipeline(
        {
            "east": hr.Kafka(here.bootstrap, topics=[here.name], format=NUMBERS, cluster="east"),
            "west": hr.Kafka(there.bootstrap, topics=[there.name], format=NUMBERS, cluster="west"),
        },
        sinks.SQLite(tmp_path / "out.db", table="numbers", create=True),
        offsets=None,
        guarantee="exactly-once",
        dead_letters="dead",
        transform=lambda rows: rows["east"].union(rows["west"]),
    )
    made.run(until="caught-up", session=spark)
    box = DeadLetterAdmin(made)
    letters = box.letters()
    assert {letter.origin.topic for letter in letters} == {f"east.{here.name}", f"west.{there.name}"}
    less = DeadLetterAdmin(replace(made, source={"east": made.sources["east"], "other": hr.Kafka("k:1", topics=["x"])}))
    with pytest.raises(ConfigError, match="does not read this topic"):
        less.replay(less.letters(), None)
    box.replay(letters, None)
    assert box.letters() == []
    for where in (here, there):
        at = TopicPartition(where.name, 0)
        assert Cluster(where.bootstrap, {}).ends([at]) == {at: 3}


class Away(stores.Memory):
    """Each of its calls fails once: before it is heard, or when it was heard and the answer is lost."""

    def __init__(self, *, heard):
        super().__init__()
        self._heard, self.failed = heard, []

    def begin(self, batch):
        self._fail("begin", super().begin, batch)

    def commit(self, batch):
        self._fail("commit", super().commit, batch)

    def _fail(self, name, call, batch):
        if len(batch) == 0 or name in self.failed:
            call(batch)
            return
        self.failed.append(name)
        if self._heard:
            call(batch)
        raise RetriableError("the store does not answer for a moment")


@pytest.mark.parametrize("heard", [True, False])
def test_a_loop_outlives_a_store_that_is_away_for_a_moment_and_says_so(spark, topic, heard, caplog):
    where = topic(partitions=1)
    where.produce(numbers(0, 10))
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=NUMBERS)
    store, seen = Away(heard=heard), []
    for batch in hr.stream(source, offsets=store, limits=hr.Limits(max_records=5), until="caught-up", session=spark):
        seen += [row["n"] for row in batch.rows().collect()]
        batch.commit()
    assert store.failed == ["begin", "commit"]
    assert sorted(seen) == list(range(10))
    assert "the store does not answer for a moment" in caplog.text
