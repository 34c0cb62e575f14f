"""`hr.exactly_once` in Structured Streaming queries: repeated batches, new checkpoints, and what is refused."""

import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

import headrace as hr
from crash.pipelines import SERVERS
from crash.queries import Query
from headrace import sinks
from headrace.errors import ConfigError, UnsupportedGuarantee
from headrace.events import Noted
from headrace.runtime.heartbeat import liveness
from headrace.support.polling import wait_until

pytestmark = pytest.mark.timeout(300)


def record(number):
    return {"id": number, "value": f"v{number}"}


def rows_of(numbers):
    return [(number, f"v{number}") for number in numbers]


@pytest.fixture
def query_on(topic, tmp_path):
    """Creates a query with the checkpoint of a name; the rows of all are in one sink."""
    events = topic(partitions=1)

    def make(kind="sqlite", mode="append"):
        made = Query(kind=kind, mode=mode, bootstrap=events.bootstrap, topic=events.name, directory=str(tmp_path))
        return made, lambda numbers: events.produce([record(number) for number in numbers])

    return make


def run(query, spark, **trigger):
    running = query.start(spark, **trigger)
    try:
        running.processAllAvailable() if trigger else running.awaitTermination(120)
    finally:
        running.stop()
    return running


def checkpoint(query):
    return Path(query.directory) / query.checkpoint


def forget_newest_batch(query):
    """Remove the newest entry of the commit log, as if Spark had died just before it wrote it."""
    commits = checkpoint(query) / "commits"
    newest = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal())
    for name in (f"{newest}", f".{newest}.crc"):
        (commits / name).unlink(missing_ok=True)
    return newest


@pytest.mark.parametrize("kind", ["sqlite", "parquet", "delta"])
def test_a_batch_that_is_missing_in_the_commit_log_is_stored_once(kind, query_on, spark):
    query, produce = query_on(kind)
    produce(range(100))
    run(query, spark)
    forget_newest_batch(query)
    produce(range(100, 130))
    run(query, spark)
    assert query.stored() == Counter(rows_of(range(130)))


@pytest.mark.parametrize("kind", ["sqlite", "parquet", "delta"])
def test_a_batch_without_new_input_that_emits_rows_is_recognised(kind, query_on, spark):
    query, produce = query_on(kind, "windows")
    produce(range(35))
    run(query, spark, processingTime="0 seconds")  # a batch without input closes the windows
    stored = query.stored()
    assert stored == Counter({(start, "10"): 1 for start in (0, 10, 20)})
    before = (checkpoint(query) / "offsets").iterdir()
    newest = forget_newest_batch(query)
    logged = [
        (checkpoint(query) / "offsets" / str(number)).read_text().splitlines()[-1] for number in (newest - 1, newest)
    ]
    assert logged[0] == logged[1], f"batch {newest} has new input: {list(before)}"
    run(query, spark, processingTime="0 seconds")
    assert query.stored() == stored


@pytest.mark.parametrize(("kind", "mode"), [("sqlite", "append"), ("parquet", "append"), ("delta", "append")])
def test_a_new_checkpoint_stores_its_batches_after_the_earlier_ones(kind, mode, query_on, spark):
    query, produce = query_on(kind, mode)
    produce(range(50))
    run(query, spark)
    shutil.rmtree(checkpoint(query))
    produce(range(50, 60))
    run(query, spark)
    assert query.stored() == Counter(rows_of(range(50))) + Counter(rows_of(range(60)))
    forget_newest_batch(query)
    run(query, spark)
    assert query.stored() == Counter(rows_of(range(50))) + Counter(rows_of(range(60)))


def test_a_new_checkpoint_replaces_the_values_of_keys(query_on, spark):
    query, produce = query_on("sqlite", "update")
    produce(range(50))
    run(query, spark)
    shutil.rmtree(checkpoint(query))
    produce(range(50, 60))
    run(query, spark)
    assert query.stored() == query.expected(rows_of(range(60)))


def test_a_restored_checkpoint_is_refused(query_on, spark, tmp_path):
    query, produce = query_on()
    produce(range(50))
    run(query, spark)
    shutil.copytree(checkpoint(query), tmp_path / "backup")
    produce(range(50, 150))
    run(query, spark)
    shutil.rmtree(checkpoint(query))
    shutil.copytree(tmp_path / "backup", checkpoint(query))
    produce(range(150, 160))
    with pytest.raises(Exception, match="restored from a backup"):
        run(query, spark)
    assert query.stored() == Counter(rows_of(range(150)))


def test_batches_that_went_elsewhere_are_refused(query_on, spark):
    query, produce = query_on()
    produce(range(50))
    run(query, spark)
    produce(range(50, 60))
    frame = query.frame(spark).writeStream.option("checkpointLocation", str(checkpoint(query)))
    frame.foreachBatch(lambda rows, _: None).trigger(availableNow=True).start().awaitTermination(120)
    produce(range(60, 70))
    with pytest.raises(Exception, match="did not go through this sink"):
        run(query, spark)
    assert query.stored() == Counter(rows_of(range(50)))


def test_a_query_that_is_stopped_leaves_the_sink_to_the_next_one(query_on, spark):
    query, produce = query_on()
    produce(range(10))
    for _ in range(3):  # the same name in one process, one after the other
        run(query, spark)
    with query.sink() as sink:
        sink.open(f"on-{query.topic}")
        wait_until(lambda: sink.offsets.lease() is None, 30)
    assert [t.name for t in threading.enumerate() if t.name == "headrace-heartbeat"] == []


def rates(spark, directory, name, write, mode="append", frame=None):
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    rows = source.select(F.col("value").alias("id"), F.lit("v").alias("value")) if frame is None else frame(source)
    started = rows.writeStream.foreachBatch(write).outputMode(mode)
    return (
        started.option("checkpointLocation", str(directory / name)).trigger(processingTime="100 milliseconds").start()
    )


def failure(query):
    with pytest.raises(Exception) as failed:
        query.awaitTermination(60)
    return str(failed.value)


def batches(query, count):
    """Wait for some more batches of a query."""
    before = query.lastProgress["batchId"] if query.lastProgress else -1
    wait_until(lambda: query.lastProgress and query.lastProgress["batchId"] >= before + count, 60)


def test_sources_other_than_kafka_are_stored_once_too(spark, tmp_path):
    notes = []
    query = Query(kind="sqlite", mode="append", bootstrap="", topic="", directory=str(tmp_path))
    for _ in range(3):
        running = rates(spark, tmp_path, "checkpoint", hr.exactly_once(query.sink(), name="r", observer=notes.append))
        batches(running, 3)
        running.stop()
        forget_newest_batch(query)
    ids = [number for number, _ in query.rows()]
    assert sorted(ids) == list(range(len(ids)))
    assert ids
    assert [note for note in notes if isinstance(note, Noted) and "stored already" in note.text]


def test_two_queries_cannot_share_a_name(spark, tmp_path):
    sink = sinks.SQLite(tmp_path / "rows.db", table="rows")
    write = hr.exactly_once(sink, name="rates")
    first = rates(spark, tmp_path, "a", write)
    try:
        batches(first, 2)
        assert "rates is in use by another active query" in failure(rates(spark, tmp_path, "b", write))
        other = hr.exactly_once(sinks.SQLite(tmp_path / "rows.db", table="rows"), name="rates")
        assert "rates is in use by another active query" in failure(rates(spark, tmp_path, "c", other))
        batches(first, 2)  # it is not disturbed
        assert first.exception() is None
    finally:
        first.stop()


def test_two_queries_cannot_share_a_sink_object(spark, tmp_path):
    sink = sinks.Parquet(tmp_path / "rows")
    first = rates(spark, tmp_path, "a", hr.exactly_once(sink, name="a"))
    try:
        batches(first, 2)
        other = failure(rates(spark, tmp_path, "b", hr.exactly_once(sink, name="b")))
        assert "is the same object that the run of a has open" in other
        batches(first, 2)
    finally:
        first.stop()


@pytest.mark.parametrize("kind", ["sqlite", "kafka"])
def test_the_lease_stays_in_the_store_while_the_query_runs(kind, query_on, spark, monkeypatch, kafka):
    monkeypatch.setenv(SERVERS["kafka"], kafka.bootstrap)
    query, produce = query_on(kind)
    running = query.start(spark, processingTime="0 seconds")
    try:
        for first in (0, 10, 20):
            produce(range(first, first + 10))
            running.processAllAvailable()
        with query.sink().offsets as store:
            assert store.open_for_reading(f"on-{query.topic}") is None
            assert liveness(store.lease()) == "alive"
    finally:
        running.stop()
    assert query.stored() == Counter(rows_of(range(30)))


def counted(source):
    return source.groupBy((F.col("value") % 3).alias("id")).count()


@pytest.mark.parametrize(
    ("sink", "mode", "reason"),
    [
        (lambda d: sinks.SQLite(d / "rows.db", table="rows"), "update", "has no key"),
        (lambda d: sinks.Delta(d / "rows"), "update", "has no key"),
        (lambda d: sinks.SQLite(d / "rows.db", table="rows", key="id", mode="upsert"), "complete", "got complete"),
    ],
)
def test_a_sink_that_does_not_fit_the_output_mode_is_refused(sink, mode, reason, spark, tmp_path):
    write = hr.exactly_once(sink(tmp_path), name="counts")
    assert reason in failure(rates(spark, tmp_path, "a", write, mode, counted))


def test_rows_with_a_reserved_column_are_refused(spark, tmp_path):
    def frame(source):
        return source.select("value", F.struct("value").alias("_kafka"))

    write = hr.exactly_once(sinks.Parquet(tmp_path / "rows"), name="rates")
    assert "_kafka is reserved" in failure(rates(spark, tmp_path, "a", write, frame=frame))


def test_rows_without_the_key_of_the_sink_are_refused(spark, tmp_path):
    sink = sinks.SQLite(tmp_path / "rows.db", table="rows", key="user", mode="upsert")
    message = failure(rates(spark, tmp_path, "a", hr.exactly_once(sink, name="rates")))
    assert "the rows have no column user" in message
    assert "key= with columns of the rows: id, value" in message


@pytest.mark.parametrize(
    ("sink", "name", "refusal", "reason"),
    [
        (lambda d: sinks.Console(), "clicks", UnsupportedGuarantee, "cannot give exactly-once"),
        (lambda d: sinks.Fanout([sinks.Parquet(d / "a"), sinks.Parquet(d / "b")]), "clicks", ConfigError, "fan-out"),
        (lambda d: "clicks", "clicks", ConfigError, "sink"),
        (lambda d: sinks.Parquet(d / "a"), "a name", ConfigError, "a name"),
    ],
)
def test_sinks_and_names_are_checked_when_the_function_is_made(sink, name, refusal, reason, tmp_path):
    with pytest.raises(refusal, match=reason):
        hr.exactly_once(sink(tmp_path), name=name)


def test_a_call_outside_a_query_is_refused(spark, tmp_path):
    write = hr.exactly_once(sinks.Parquet(tmp_path / "rows"), name="clicks")
    with pytest.raises(ConfigError, match="outside a streaming query"):
        write(spark.range(3), 0)
