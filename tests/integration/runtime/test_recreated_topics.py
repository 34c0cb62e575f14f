"""A topic is deleted and created again while a batch of it is being read: nothing of the new topic at old offsets."""

import json
import uuid
from types import SimpleNamespace

import psycopg
import pytest
import redis as redis_driver

import headrace as hr
from headrace import events, sinks, stores
from headrace.errors import DataLoss
from headrace.testing.committed_records import read_committed
from headrace.types import Range, TopicPartition
from support.interleaving import meanwhile

OLD, NEW = range(60), range(1_000, 1_300)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))


@pytest.fixture
def table():
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def target(request, tmp_path, topic, table):
    """A sink by name, and how to read the ids that are in it."""

    def parquet():
        sink = sinks.Parquet(tmp_path / "rows")

        def ids():
            import duckdb

            files = sink.files()
            return [row[0] for row in duckdb.sql(f"SELECT id FROM read_parquet({files})").fetchall()] if files else []

        return sink, ids

    def duckdb_table():
        import duckdb

        def ids():
            with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
                return [row[0] for row in connection.execute(f"SELECT id FROM {table}").fetchall()]

        return sinks.DuckDB(tmp_path / "a.duckdb", table=table, create=True), ids

    def postgres(**how):
        address = request.getfixturevalue("postgres").address

        def ids():
            with psycopg.connect(address) as connection:
                return [row[0] for row in connection.execute(f"SELECT id FROM {table}").fetchall()]

        return sinks.Postgres(address, table, create=True, **how), ids

    def kafka():
        out = topic(partitions=1)
        return (
            sinks.Kafka(out.bootstrap, out.name),
            lambda: [json.loads(record.value())["id"] for record in read_committed(out.bootstrap, out.name)],
        )

    def redis_stream():
        url = request.getfixturevalue("redis").url

        def ids():
            with redis_driver.Redis.from_url(url, decode_responses=True) as client:
                return [int(fields["id"]) for _, fields in client.xrange(table)]

        return sinks.Redis(url, table, structure="stream"), ids

    def make(kind):
        made = {
            "parquet": parquet,
            "duckdb": duckdb_table,
            "postgres": postgres,
            "postgres by batch": lambda: postgres(visible="batch"),
            "kafka": kafka,
            "redis stream": redis_stream,
        }[kind]
        sink, ids = made()
        return SimpleNamespace(sink=sink, ids=ids)

    return make


def pipeline(where, sink, on_data_loss, transform=lambda rows: rows, guarantee="exactly-once"):
    own = None if isinstance(sink, sinks.TransactionalSink) else stores.Memory()
    return hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(
            where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT"), on_data_loss=on_data_loss, refresh=1000.0
        ),
        transform=transform,
        sink=sink,
        guarantee=guarantee,
        offsets=own,
    )


def recreate(where):
    def act():
        where.recreate()
        where.produce([{"id": number} for number in NEW])

    return act


KINDS = ["parquet", "duckdb", "postgres", "postgres by batch", "kafka", "redis stream"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_recreated_between_planning_and_read_is_a_gap_of_the_batch(kind, target, topic, spark):
    """The batch reads the new topic at the old offsets: stored, its rows would come again, and others never."""
    where, made, seen = topic(partitions=2), target(kind), []
    where.produce([{"id": number} for number in OLD])
    planned = pipeline(where, made.sink, "earliest")

    with meanwhile("before write", recreate(where)):
        planned.run(until="caught-up", session=spark, observer=seen.append)
    planned.run(until="caught-up", session=spark, observer=seen.append)

    assert sorted(made.ids()) == [*NEW]
    with planned.store.open(planned.name) as store:
        recorded = [change for change in store.history() if change.action == "gap"]
    lost = [Range(TopicPartition(where.name, number), 0, 30) for number in range(2)]
    assert recorded
    if planned.offsets is not None:
        assert recorded[0].before == {r.at: r.start for r in lost}
        assert recorded[0].after == {r.at: r.until for r in lost}
    else:
        assert sorted(event.lost for event in seen if isinstance(event, events.GapFound)) == lost
        assert "30 offsets" in recorded[0].note


class Unaware(sinks.Sink):
    """A user's own, which knows nothing of topic ids."""

    def __init__(self):
        self.ids = []

    def write(self, batch, rows):
        self.ids += [row["id"] for row in rows.collect()]


def test_a_sink_that_compares_nothing_has_the_ids_compared_before_its_offsets_move(topic, spark):
    where, sink, seen = topic(partitions=1), Unaware(), []
    where.produce([{"id": number} for number in OLD])
    planned = pipeline(where, sink, "earliest", guarantee="at-least-once")
    with meanwhile("before write", recreate(where)):
        planned.run(until="caught-up", session=spark, observer=seen.append)
    at = TopicPartition(where.name, 0)
    first = planned.store.open(planned.name).history()[0]
    assert (first.action, first.before, first.after) == ("gap", {at: 0}, {at: len(OLD)})
    done = [event.batch.ranges for event in seen if isinstance(event, events.BatchDone)]
    assert done == [(Range(at, 0, len(NEW)),)]
    assert set(sink.ids) == set(NEW)


@pytest.mark.parametrize("kind", ["parquet", "redis stream"])
def test_at_most_once_stores_nothing_of_the_new_topic_twice(kind, target, topic, spark):
    """The offsets have moved when the rows are read: what is there of the new topic comes later, from its beginning."""
    where, made, seen = topic(partitions=1), target(kind), []
    where.produce([{"id": number} for number in OLD])
    with meanwhile("before write", recreate(where)):
        pipeline(where, made.sink, "earliest", guarantee="at-most-once").run(
            until="caught-up", session=spark, observer=seen.append
        )
    assert sorted(made.ids()) == [*NEW]
    (skipped,) = [event for event in seen if isinstance(event, events.BatchSkipped)]
    assert skipped.batch.ranges == (Range(TopicPartition(where.name, 0), 0, len(OLD)),)


@pytest.mark.parametrize("kind", ["postgres", "redis stream"])
def test_on_data_loss_fail_stops_and_stores_nothing(kind, target, topic, spark):
    where, made = topic(partitions=1), target(kind)
    where.produce([{"id": number} for number in OLD])
    planned = pipeline(where, made.sink, "fail")

    with meanwhile("before write", recreate(where)), pytest.raises(DataLoss, match="created again"):
        planned.run(until="caught-up", session=spark, fail_fast=True)
    assert made.ids() == []


def test_a_batch_of_a_loop_whose_topic_was_recreated_is_a_gap(topic, spark, tmp_path):
    where = topic(partitions=1)
    where.produce([{"id": number} for number in OLD])
    source = hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT"), on_data_loss="earliest")
    store = stores.SQLite(tmp_path / "offsets.db")
    read = []
    with hr.stream(source, name="loop", offsets=store, session=spark) as batches:
        for batch in batches:
            if not read:
                recreate(where)()
            read.append([row["id"] for row in batch.rows().collect()])
            batch.commit()
            if sum(map(len, read)) >= len(OLD) + len(NEW):
                break
    assert read[1:] == [[*NEW]]
    with store.open("loop") as opened:
        first = opened.history()[0]
    at = TopicPartition(where.name, 0)
    assert (first.action, first.before, first.after) == ("gap", {at: 0}, {at: len(OLD)})
