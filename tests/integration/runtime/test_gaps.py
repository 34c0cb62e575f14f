"""Records that are gone: noticed, never silent, passed over only when told."""

import time

import pytest

import headrace as hr
from headrace import dev, events, sinks, stores
from headrace.engine.range_reader import RangeReader
from headrace.errors import DataLoss
from headrace.kafka.cluster import Cluster
from headrace.testing.fixtures import Topic
from headrace.types import Range, TopicPartition
from support.background_run import BackgroundRun


class Carried:
    """Runs of one pipeline into memory."""

    def __init__(self, topic, tmp_path, spark):
        self.topic = topic
        self.spark = spark
        self.rows = sinks.Memory()
        self.store = stores.SQLite(tmp_path / "offsets.db")
        self.seen = []

    def run(self, on_data_loss="fail", **more):
        pipeline = hr.Pipeline(
            name="gaps",
            source=hr.Kafka(
                self.topic.bootstrap,
                topics=[self.topic.name],
                format=hr.Json("id BIGINT"),
                on_data_loss=on_data_loss,
                **more,
            ),
            sink=self.rows,
            guarantee="at-least-once",
            offsets=self.store,
        )
        return pipeline.run(until="caught-up", session=self.spark, observer=self.seen.append)

    def ids(self):
        return [row["id"] for row in self.rows.rows]

    def gaps(self):
        return [event for event in self.seen if isinstance(event, events.GapFound)]

    def history(self):
        with self.store.open("gaps") as store:
            return list(store.history())


@pytest.fixture
def carried(topic, tmp_path, spark):
    def make(**config):
        return Carried(topic(partitions=1, config=config), tmp_path, spark)

    return make


def numbered(start, until):
    return [{"id": number} for number in range(start, until)]


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def test_segments_deleted_by_retention_under_a_stopped_pipeline_stop_it_or_are_recorded(carried):
    """A real broker deletes real segments."""
    pipe = carried(**{"segment.bytes": "1048576", "retention.ms": "-1"})
    pipe.topic.produce(numbered(0, 10))
    pipe.run()
    padding = "x" * 50_000
    pipe.topic.produce([{"id": number, "padding": padding} for number in range(10, 60)])
    pipe.topic.configure({"retention.ms": "1"})
    at = TopicPartition(pipe.topic.name, 0)
    cluster = Cluster(pipe.topic.bootstrap, {})
    wait_until(lambda: cluster.logs_of([pipe.topic.name])[pipe.topic.name].beginnings[at] > 10)
    pipe.topic.configure({"retention.ms": "-1"})
    beginning = cluster.logs_of([pipe.topic.name])[pipe.topic.name].beginnings[at]

    with pytest.raises(DataLoss) as caught:
        pipe.run()
    assert f"[10, {beginning})" in str(caught.value)
    pipe.run("earliest")
    (gap,) = pipe.gaps()
    assert (gap.lost.start, gap.lost.until, gap.resumed_at) == (10, beginning, beginning)
    (entry,) = pipe.history()
    assert (entry.action, entry.before, entry.after) == ("gap", {at: 10}, {at: beginning})
    assert f"{beginning - 10:,} offsets" in entry.note
    assert pipe.ids() == [*range(10), *range(beginning, 60)]


def test_latest_goes_on_at_the_end_of_the_log(carried):
    pipe = carried()
    pipe.topic.produce(numbered(0, 10))
    pipe.run()
    pipe.topic.produce(numbered(10, 30))
    pipe.topic.truncate(20)
    pipe.run("latest")
    pipe.topic.produce(numbered(30, 35))
    pipe.run("latest")
    assert pipe.ids() == [*range(10), *range(30, 35)]
    assert len(pipe.gaps()) == 1


def test_a_recreated_topic_is_recognised_even_when_its_log_is_longer(carried):
    pipe = carried()
    pipe.topic.produce(numbered(0, 10))
    pipe.run()
    pipe.topic.recreate()
    pipe.topic.produce(numbered(100, 150))
    with pytest.raises(DataLoss, match="created again"):
        pipe.run()
    pipe.run("earliest")
    assert pipe.ids() == [*range(10), *range(100, 150)]
    pipe.topic.produce(numbered(150, 155))
    pipe.run()  # the new topic is the known one now
    assert pipe.ids()[-5:] == [*range(150, 155)]


def test_a_compacted_topic_neither_stalls_nor_looks_like_loss(carried):
    """The cleaner leaves holes in the offsets; positions advance by range."""
    pipe = carried(
        **{
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "200",
            "delete.retention.ms": "100",
        }
    )
    for number in range(5):
        pipe.topic.produce(numbered(number * 10, number * 10 + 10), key=b"same")
    pipe.topic.produce(numbered(50, 52), key=b"other")
    pipe.run()
    assert {50, 51} & set(pipe.ids())
    pipe.topic.produce(numbered(52, 53), key=b"last")
    pipe.run()
    assert pipe.ids()[-1] == 52
    assert not pipe.gaps()


def test_aborted_transactions_and_control_records_are_passed(carried):
    pipe = carried()
    pipe.topic.produce(numbered(0, 5))
    pipe.topic.produce_in_transaction(numbered(5, 10), commit=True)
    pipe.topic.produce_in_transaction(numbered(90, 99), commit=False)
    pipe.run()
    assert pipe.ids() == [*range(10)]
    pipe.topic.produce_in_transaction(numbered(90, 99), commit=False)  # the log ends in nothing but markers
    pipe.run()
    assert pipe.ids() == [*range(10)]
    with pipe.store.open("gaps") as store:
        assert list(store.load().offsets.values()) == [31]
    pipe.topic.produce(numbered(10, 12))
    pipe.run()
    assert pipe.ids() == [*range(12)]
    assert not pipe.gaps()


class Remaking(sinks.Memory):
    """Before its third batch the topic is deleted, and made anew with other records."""

    def __init__(self, topic):
        super().__init__()
        self._topic, self._written = topic, 0

    def write(self, batch, rows):
        super().write(batch, rows)
        self._written += 1
        if self._written == 2:
            self._topic.recreate()
            self._topic.produce([{"id": -1}] * 500)


def test_what_was_fetched_ahead_of_a_topic_that_is_no_more_is_not_taken_for_the_new_one(topic, spark):
    where = topic(partitions=1)
    where.produce(numbered(0, 1000))
    pipeline = hr.Pipeline(
        name=f"anew-{where.name}",
        source=hr.Kafka(
            where.bootstrap, topics=[where.name], format=hr.Json("id INT"), on_data_loss="earliest", refresh=0.1
        ),
        sink=Remaking(where),
        guarantee="at-least-once",
        offsets=stores.Memory(),
        limits=hr.Limits(max_records=100),
    )
    with BackgroundRun(pipeline, spark) as live:
        live.wait(lambda: len(live.sink.rows) >= 700)
    assert [row["id"] for row in live.sink.rows] == [*range(200), *[-1] * 500]


def test_a_deleted_topic_is_not_made_again_by_reading_it(tmp_path, spark):
    with dev.Kafka(tmp_path, options={"auto.create.topics.enable": "true"}, heap="256m") as server:
        where = Topic(server.bootstrap, "gone", 1, {})
        where.produce(numbered(0, 10))
        reader = RangeReader(spark, server.bootstrap, {"default.api.timeout.ms": "3000"}, "headrace-gone")
        ranges = [Range(TopicPartition("gone", 0), 0, 10)]
        assert reader.rows(ranges).count() == 10
        where.delete()
        with pytest.raises(Exception, match="gone"):
            RangeReader(spark, server.bootstrap, {"default.api.timeout.ms": "3000"}, "other").rows(ranges).count()
        assert Cluster(server.bootstrap, {}).existing_logs(["gone"]) == {}
