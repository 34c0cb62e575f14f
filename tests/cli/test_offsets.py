"""`headrace offsets` on a real broker, as typed."""

import json
import os
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace import events, sinks, stores
from headrace.cli.main import app
from headrace.core.state import RunLease
from headrace.errors import ConfigError, OffsetConflict
from headrace.kafka.cluster import Cluster
from headrace.runtime.heartbeat import this_run
from headrace.support.polling import wait_until
from headrace.testing import compare
from headrace.types import Batch, Range, TopicPartition


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))


class Service:
    """A pipeline with offsets in SQLite, and the command line at hand."""

    def __init__(self, events, tmp_path):
        self.events = events
        self.place = f"sqlite:{tmp_path / 'offsets.db'}"
        self.store = stores.SQLite(tmp_path / "offsets.db")
        self.partitions = [TopicPartition(events.name, number) for number in range(events.partitions)]

    def processed(self, *offsets):
        ranges = tuple(Range(at, 0, offset) for at, offset in zip(self.partitions, offsets, strict=True))
        with self.store.open("svc") as store:
            store.commit(Batch(1, ranges, Cluster(self.events.bootstrap, {}).ids([self.events.name])))

    def offsets(self):
        with self.store.open("svc") as store:
            progress = store.load()
        return [progress.offsets.get(at) for at in self.partitions]

    def say(self, *words):
        arguments = ["--store", self.place, "--pipeline", "svc", "--bootstrap", self.events.bootstrap]
        result = CliRunner().invoke(app, ["offsets", *words, *arguments], catch_exceptions=True)
        if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    def json(self, *words):
        return json.loads(self.say(*words, "--json").stdout)


@pytest.fixture
def service(topic, tmp_path):
    events = topic(partitions=2)
    events.produce([{"id": number} for number in range(100)])
    return Service(events, tmp_path)


def test_a_reset_only_shows_the_change_without_execute(service):
    service.processed(40, 50)
    shown = service.say("reset", "--to", "shift:-10")
    assert "40" in shown.stdout
    assert "30" in shown.stdout
    assert "--execute" in shown.stderr
    assert service.offsets() == [40, 50]
    service.say("reset", "--to", "shift:-10", "--execute")
    assert service.offsets() == [30, 40]


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["--to", "earliest"], [0, 0]),
        (["--to-earliest"], [0, 0]),
        (["--to", "latest"], [50, 50]),
        (["--to-latest"], [50, 50]),
        (["--to-offset", "7"], [7, 7]),
        (["--shift-by", "-5"], [35, 45]),
        (["--by-duration", "PT1H"], [0, 0]),
        (["--to-datetime", "2100-01-01T00:00:00Z"], [50, 50]),
    ],
)
def test_every_way_to_name_a_place_works(service, words, after):
    service.processed(40, 50)
    service.say("reset", *words, "--execute")
    assert service.offsets() == after


def test_a_time_is_found_in_the_log(service):
    service.processed(50, 50)
    middle = time.time()
    while time.time() <= middle + 0.01:  # record times have milliseconds
        pass
    service.events.produce([{"id": number} for number in range(100, 120)])
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(middle)) + f".{int(middle % 1 * 1000) + 5:03}+00:00"
    service.say("reset", "--to", stamp, "--execute")
    assert service.offsets() == [50, 50]


def test_one_partition_is_moved_alone_and_seek_sets_single_offsets(service):
    service.processed(40, 50)
    service.say("reset", "--to", "earliest", "--partition", f"{service.events.name}:1", "--execute")
    assert service.offsets() == [40, 0]
    service.say("seek", f"{service.events.name}:0=12", "--execute")
    assert service.offsets() == [12, 0]


def test_seek_takes_the_pipeline_s_file_as_the_other_verbs_do(service, tmp_path):
    service.processed(40, 50)
    file = tmp_path / "svc.toml"
    file.write_text(f"""
        name = "svc"
        guarantee = "at-least-once"
        source = {{ kafka = "nowhere:1", topics = ["{service.events.name}"], format = "bytes" }}
        sink = {{ console = true }}
        offsets = {{ sqlite = "{tmp_path / "offsets.db"}" }}
        [profile.here.source]
        kafka = "{service.events.bootstrap}"
    """)
    words = ["offsets", "seek", str(file), f"{service.events.name}:0=12", "--profile", "here", "--execute"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert service.offsets() == [12, 50]
    wrong = CliRunner().invoke(app, ["offsets", "seek", str(file)])
    assert isinstance(wrong.exception, ConfigError)


def test_lag_of_a_partition_without_an_offset_counts_what_is_there(service):
    with service.store.open("svc") as store:
        at = service.partitions[0]
        store.commit(Batch(1, (Range(at, 0, 40),), Cluster(service.events.bootstrap, {}).ids([at.topic])))
    service.events.truncate(20, partition=1)
    lag = service.json("lag", "--topic", service.events.name)
    assert [(entry["offset"], entry["records"]) for entry in lag["partitions"]] == [(40, 10), (None, 30)]
    assert "none" in service.say("lag", "--topic", service.events.name).stdout


def test_offsets_outside_the_log_are_marked_and_refused_without_outside(service):
    service.processed(40, 50)
    assert "OUTSIDE" in service.say("reset", "--to", "5000").stdout
    with pytest.raises(ConfigError, match="outside"):
        service.say("reset", "--to", "5000", "--execute")
    assert service.offsets() == [40, 50]
    service.say("reset", "--to", "5000", "--outside", "--execute")
    assert service.offsets() == [5000, 5000]


def test_a_running_pipeline_is_left_alone_and_named(service):
    service.processed(40, 50)
    with service.store.open("svc") as store:
        store.set_lease(RunLease(os.uname().nodename, os.getpid(), started=time.time(), beat=time.time()))
    with pytest.raises(OffsetConflict, match=f"pid {os.getpid()}"):
        service.say("reset", "--to", "earliest", "--execute")
    assert service.offsets() == [40, 50]


def test_a_run_that_was_killed_does_not_block_the_next(service):
    service.processed(40, 50)
    with service.store.open("svc") as store:
        store.set_lease(replace(this_run(), pid=2**22 - 3))
    service.say("reset", "--to", "earliest", "--execute")
    assert service.offsets() == [0, 0]


@pytest.mark.parametrize("host", ["here", "other-host"])
def test_a_run_that_cannot_be_looked_up_is_left_alone_while_its_heart_beats(service, host):
    """In another container with the same host name, or on another machine; its batch may last for minutes."""
    service.processed(40, 50)
    host = os.uname().nodename if host == "here" else host
    run = replace(this_run(), host=host, pid=2**22 - 3, pid_space="another-boot pid:[1]")
    with service.store.open("svc") as store:
        store.set_lease(run)
        with pytest.raises(OffsetConflict, match=f"on {host}, last heartbeat"):
            service.say("reset", "--to", "earliest", "--execute")
        store.heartbeat(replace(run, beat=time.time() - 3600))
    assert service.offsets() == [40, 50]
    service.say("reset", "--to", "earliest", "--execute")
    assert service.offsets() == [0, 0]


def test_a_forced_move_waits_for_the_batch_in_flight_and_the_run_is_refused_at_its_next(service, tmp_path):
    """Moved at once, the offsets would leave behind a batch that the run has stored, and its records be read again."""
    service.processed(40, 50)
    starts = dict(zip(service.partitions, (40, 50), strict=True))
    batch = Batch(2, tuple(Range(at, start, start + 5) for at, start in starts.items()))
    following = Batch(3, tuple(Range(r.at, r.until, r.until + 5) for r in batch.ranges))
    begun, refused = threading.Event(), []

    def run_of_the_pipeline():
        with stores.SQLite(tmp_path / "offsets.db").open("svc") as store:
            store.set_lease(replace(this_run(), pid_space="another-boot pid:[1]"))
            store.begin(batch)
            begun.set()
            time.sleep(0.5)
            store.commit(batch)
            while not refused and time.monotonic() < deadline:
                time.sleep(0.01)  # planning
                try:
                    store.begin(following)
                    store.commit(Batch(3, following.ranges))
                except OffsetConflict as error:
                    refused.append(error)

    deadline = time.monotonic() + 30
    running = threading.Thread(target=run_of_the_pipeline)
    running.start()
    assert begun.wait(30)
    with pytest.raises(OffsetConflict, match="is running"):
        service.say("reset", "--to", "earliest", "--execute")
    service.say("reset", "--to", "earliest", "--execute", "--force")
    running.join()
    assert service.offsets() == [0, 0]
    assert len(refused) == 1
    with service.store.open("svc") as store:
        (change,) = [change for change in store.history() if change.action == "reset"]
    assert change.before in [{r.at: r.until for r in one.ranges} for one in (batch, following)]


def test_a_change_is_undone_once_and_only_while_nothing_moved_since(service):
    service.processed(40, 50)
    service.say("reset", "--to", "earliest", "--execute")
    service.say("undo", "--execute")
    assert service.offsets() == [40, 50]
    service.say("reset", "--to", "earliest", "--execute")
    service.say("seek", f"{service.events.name}:0=3", "--execute")
    service.say("undo", "--execute")
    assert service.offsets() == [0, 0]


def test_every_change_is_in_the_history_with_who_and_from_where(service):
    service.processed(40, 50)
    service.say("reset", "--to", "earliest", "--execute")
    (entry,) = service.json("history")
    assert entry["action"] == "reset"
    assert entry["before"] == {service.events.name: {"0": 40, "1": 50}}
    assert entry["after"] == {service.events.name: {"0": 0, "1": 0}}
    assert str(os.getpid()) in entry["who"]
    assert "reset" in service.say("history").stdout


def test_show_and_lag_tell_offsets_records_and_seconds(service):
    service.processed(40, 50)
    shown = service.json("show")
    assert shown["offsets"] == {service.events.name: {"0": 40, "1": 50}}
    assert shown["running"] is None
    lag = service.json("lag")
    assert lag["records"] == 10
    assert [entry["records"] for entry in lag["partitions"]] == [10, 0]
    assert lag["partitions"][0]["seconds"] > 0
    assert lag["partitions"][1]["seconds"] == 0
    assert "total" in service.say("lag").stdout


def test_what_export_writes_import_reads(service, tmp_path):
    service.processed(40, 50)
    service.say("export", "--output", str(tmp_path / "o.json"))
    service.say("reset", "--to", "earliest", "--execute")
    service.say("import", "--from-file", str(tmp_path / "o.json"), "--execute")
    assert service.offsets() == [40, 50]


def test_the_offsets_of_a_kafka_group_are_taken_over(service):
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Position

    consumer = Consumer({"bootstrap.servers": service.events.bootstrap, "group.id": f"g-{service.events.name}"})
    consumer.commit(
        offsets=[Position(service.events.name, 0, 11), Position(service.events.name, 1, 22)], asynchronous=False
    )
    consumer.close()
    service.say("import", "--kafka-group", f"g-{service.events.name}", "--execute")
    assert service.offsets() == [11, 22]
    with pytest.raises(ConfigError, match="there is no group nobody"):
        service.say("import", "--kafka-group", "nobody")


def test_offsets_of_a_group_are_not_imported_while_a_transaction_is_open_over_them(service):
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import TopicPartition as Position

    group = f"g-{service.events.name}"
    servers = {"bootstrap.servers": service.events.bootstrap}
    consumer = Consumer({**servers, "group.id": group})
    consumer.commit(offsets=[Position(service.events.name, 0, 11)], asynchronous=False)
    producer = Producer({**servers, "transactional.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([Position(service.events.name, 1, 22)], consumer.consumer_group_metadata(), 30)
    consumer.close()
    with pytest.raises(ConfigError, match="a transaction is open"):
        service.say("import", "--kafka-group", group)
    producer.commit_transaction(30)
    service.say("import", "--kafka-group", group, "--execute")
    assert service.offsets() == [11, 22]


def test_the_checkpoint_of_a_real_streaming_query_is_taken_over(service, spark, tmp_path):
    """Read half with Structured Streaming, go on with us: every record once."""
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", service.events.bootstrap)
        .option("subscribe", service.events.name)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        frame.selectExpr("CAST(get_json_object(CAST(value AS STRING), '$.id') AS BIGINT) AS id")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "before"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    service.events.produce([{"id": number} for number in range(100, 160)])

    service.say("import", "--spark-checkpoint", str(tmp_path / "checkpoint"), "--execute")
    assert service.offsets() == [50, 50]
    after = sinks.Memory()
    carry(service, after, spark)
    before = [row.id for row in spark.read.parquet(str(tmp_path / "before")).collect()]
    difference = compare(range(160), before + [row["id"] for row in after.rows])
    assert (difference.missing, difference.duplicate) == (0, 0)


def carry(service, sink, spark, store=None, observer=None, **more):
    return hr.Pipeline(
        name="svc",
        source=hr.Kafka(service.events.bootstrap, topics=[service.events.name], format=hr.Json("id BIGINT")),
        sink=sink,
        guarantee="at-least-once",
        offsets=store or service.store,
        limits=hr.Limits(max_records=30),
        **more,
    ).run(until="caught-up", session=spark, observer=observer)


def test_a_service_moves_to_another_store_while_events_keep_coming(service, spark, tmp_path):
    rows = sinks.Memory()
    carry(service, rows, spark)
    service.events.produce([{"id": number} for number in range(100, 150)])
    other = stores.DuckDB(tmp_path / "offsets.duckdb")
    words = ["--from", service.place, "--to", f"duckdb:{tmp_path / 'offsets.duckdb'}", "--pipeline", "svc"]
    assert CliRunner().invoke(app, ["offsets", "copy", *words, "--execute"]).exit_code == 0
    service.events.produce([{"id": number} for number in range(150, 200)])
    carry(service, rows, spark, store=other)
    difference = compare(range(200), [row["id"] for row in rows.rows])
    assert (difference.missing, difference.duplicate) == (0, 0)
    again = CliRunner().invoke(app, ["offsets", "copy", *words, "--execute"])
    assert isinstance(again.exception, OffsetConflict)


def test_with_the_mirror_on_kafka_tools_see_the_same_lag(service, spark, tmp_path):
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    carry(service, sinks.Memory(), spark, mirror_group=f"m-{service.events.name}")
    service.events.produce([{"id": number} for number in range(100, 130)])

    admin = AdminClient({"bootstrap.servers": service.events.bootstrap})
    group = f"m-{service.events.name}"
    committed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    seen = {position.partition: position.offset for position in committed.topic_partitions}
    lag = service.json("lag")
    ends = {entry["partition"]: entry["end"] for entry in lag["partitions"]}
    assert sum(ends[partition] - offset for partition, offset in seen.items()) == lag["records"] == 30


def test_a_mirror_that_fails_never_stops_the_pipeline(service, spark):
    from confluent_kafka import Consumer

    group = f"m-{service.events.name}"
    member = Consumer({"bootstrap.servers": service.events.bootstrap, "group.id": group})
    rows, failures = sinks.Memory(), []
    with closing(member):
        member.subscribe([service.events.name])
        assert wait_until(
            lambda: (member.poll(0.1), member.assignment())[1], 30
        )  # the broker refuses commits of others
        carry(service, rows, spark, observer=failures.append, mirror_group=group)
    assert len(rows.rows) == 100
    assert any(isinstance(event, events.MirrorFailed) for event in failures)


def test_offsets_of_several_clusters_are_shown_and_moved_by_the_names_they_are_known_as(topic, spark, tmp_path):
    here, there = topic(partitions=1), topic(partitions=1)
    here.produce([{"n": n} for n in range(5)])
    there.produce([{"n": n} for n in range(7)])
    file = tmp_path / "merged.toml"
    file.write_text(
        f"""
name = "merged"
guarantee = "at-least-once"
[sources.east]
kafka = "{here.bootstrap}"
topics = ["{here.name}"]
cluster = "east"
[sources.west]
kafka = "{there.bootstrap}"
topics = ["{there.name}"]
cluster = "west"
[transform]
sql = "SELECT * FROM east UNION ALL SELECT * FROM west"
[sink]
parquet = "{tmp_path}/out"
[offsets]
sqlite = "{tmp_path}/offsets.db"
"""
    )
    from headrace.runtime.config import load

    load(str(file)).pipeline.run(until="caught-up", session=spark)
    there.produce([{"n": 8}])

    def lag():
        said = CliRunner().invoke(app, ["offsets", "lag", str(file), "--json"], catch_exceptions=False)
        return {one["topic"]: (one["offset"], one["records"]) for one in json.loads(said.stdout)["partitions"]}

    assert lag() == {f"east.{here.name}": (5, 0), f"west.{there.name}": (7, 1)}
    words = ["offsets", "reset", str(file), "--to", "earliest", "--topic", f"east.{here.name}", "--execute"]
    moved = CliRunner().invoke(app, words, catch_exceptions=False)
    assert moved.exit_code == 0, moved.stdout
    assert lag() == {f"east.{here.name}": (0, 5), f"west.{there.name}": (7, 1)}
    strange = CliRunner().invoke(app, ["offsets", "lag", str(file), "--topic", here.name])
    assert "none of the sources reads" in str(strange.exception)
