"""Several sinks in one batch: each has every row once, whatever happens to the others."""

import uuid

import duckdb
import psycopg
import pytest

import headrace as hr
from headrace import sinks, stores
from headrace.core.state import AuditEntry
from headrace.errors import ConfigError, OffsetConflict, RetriableError, UnsupportedGuarantee
from headrace.testing.sinks import AT, batch, frame, numbered


class Failing(sinks.IdempotentSink):
    """Fails as often as told, then takes everything."""

    identity = "failing"

    def __init__(self, times):
        self.left = times
        self.batches = []

    def write(self, batch, rows):
        if self.left:
            self.left -= 1
            raise RetriableError("not now")
        if batch not in self.batches:
            self.batches.append(batch)


@pytest.fixture
def tables(postgres):
    class Tables:
        names = tuple(f"t_{uuid.uuid4().hex[:12]}" for _ in range(2))

        def sink(self, number):
            return sinks.Postgres(postgres.address, self.names[number], create=True)

        def rows(self, number):
            with psycopg.connect(postgres.address) as connection:
                return sorted(connection.execute(f"SELECT id, text FROM {self.names[number]}").fetchall())

    return Tables()


def test_a_failure_in_the_third_does_not_double_the_first_two(tables, spark, tmp_path):
    third = Failing(times=2)
    with sinks.Fanout([tables.sink(0), sinks.Parquet(tmp_path / "rows"), third]).open("p") as sink:
        for _ in range(2):
            with pytest.raises(RetriableError):
                sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert tables.rows(0) == numbered(0, 3)
    assert len(duckdb.sql(f"FROM read_parquet('{tmp_path}/rows/*/*.parquet')").fetchall()) == 3
    assert [b.id for b in third.batches] == [1]


def test_two_tables_of_one_database_each_have_every_row(tables, spark):
    with sinks.Fanout([tables.sink(0), tables.sink(1)]).open("p") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(2, 3, 4), frame(spark, numbered(3, 4)))
    assert tables.rows(0) == tables.rows(1) == numbered(0, 4)


def test_a_zombie_that_wakes_after_its_successor_wrote_changes_nothing(tables, spark, tmp_path):
    made = [sinks.Fanout([tables.sink(0), sinks.Parquet(tmp_path / "rows")]) for _ in range(2)]
    with made[0].open("p") as zombie, made[1].open("p") as successor:
        successor.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        successor.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        with pytest.raises(OffsetConflict):
            zombie.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert tables.rows(0) == numbered(0, 5)


def test_a_transactional_sink_follows_when_the_offsets_of_the_pipeline_were_moved(tables, spark):
    with sinks.Fanout([tables.sink(0)]).open("p") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(2, 0, 3), frame(spark, numbered(0, 3)))  # read again on purpose: a new batch
        (child,) = sink._sinks.values()
        assert child.offsets.load().offsets == {AT: 3}
        assert [change.action for change in child.offsets.history()] == ["follow"]
        assert isinstance(child.offsets.history()[0], AuditEntry)
    assert tables.rows(0) == sorted(numbered(0, 3) * 2)


def test_batches_are_numbered_above_what_any_sink_has_seen(tables, spark):
    with sinks.Fanout([tables.sink(0), Failing(0)]).open("p") as sink:
        sink.write(batch(41, 0, 3), frame(spark, numbered(0, 3)))
        assert sink.last_batch() == 41


def test_the_source_is_read_once(topic, spark, tmp_path):
    where = topic(partitions=2)
    where.produce([{"id": n} for n in range(50)])
    reads = spark.sparkContext.accumulator(0)

    def count(rows):
        counted = spark.udf.register("counted", lambda n: (reads.add(1), n)[1], "bigint")
        return rows.select(counted("id").alias("id"))

    one = sinks.Memory()
    hr.Pipeline(
        name=f"p-{uuid.uuid4().hex[:8]}",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id BIGINT")),
        transform=count,
        sink=sinks.Fanout([one, sinks.Parquet(tmp_path / "rows"), sinks.SQLite(tmp_path / "rows.db", "rows")]),
        guarantee="at-least-once",
        offsets=stores.SQLite(tmp_path / "o.db"),
    ).run(until="caught-up", session=spark, fail_fast=True)
    assert len(one.rows) == 50
    assert reads.value == 50


def test_exactly_once_only_if_every_one_of_them_can(tmp_path):
    def pipeline(sink):
        return hr.Pipeline(name="p", source=hr.Kafka("x:1", topics=["t"]), sink=sink, guarantee="exactly-once")

    pipeline(sinks.Fanout([sinks.Parquet(tmp_path / "a"), sinks.SQLite(tmp_path / "b.db", "t")]))
    with pytest.raises(UnsupportedGuarantee):
        pipeline(sinks.Fanout([sinks.Parquet(tmp_path / "a"), sinks.Memory()]))


@pytest.mark.parametrize("given", [[], "parquet", [1], None])
def test_what_is_not_a_list_of_sinks_is_refused(given):
    with pytest.raises(ConfigError, match="expected a list of sinks"):
        sinks.Fanout(given)


def test_the_same_sink_twice_and_a_fanout_inside_another_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="the same"):
        sinks.Fanout([sinks.Parquet(tmp_path / "a"), sinks.Parquet(tmp_path / "a")])
    with pytest.raises(ConfigError, match="not a Fanout"):
        sinks.Fanout([sinks.Fanout([sinks.Parquet(tmp_path / "a")])])
