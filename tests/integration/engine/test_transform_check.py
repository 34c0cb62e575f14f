"""What a transform may do on the direct engine, read off its plan before anything is run."""

from dataclasses import replace

import pytest
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType
from pyspark.sql.window import Window

import headrace as hr
from headrace import events, sinks, stores
from headrace.engine import transform_check
from headrace.engine.engine import DirectEngine
from headrace.engine.source_readers import SourceReaders
from headrace.errors import ConfigError, HeadraceError
from headrace.types import Batch, Range, TopicPartition

FORMAT = hr.Json("user STRING, page STRING, at TIMESTAMP, window STRING")


def look(spark, transform):
    return transform_check.dry_run(
        SourceReaders(spark, hr.Kafka("nowhere:1", topics=["t"], format=FORMAT), "g", whole_partitions=True), transform
    )


STATEFUL = {
    "withWatermark": lambda rows: rows.withWatermark("at", "1 minute"),
    "window over time": lambda rows: rows.groupBy(sql.window("at", "5 minutes")).count(),
    "sliding window": lambda rows: rows.groupBy(sql.window("at", "5 minutes", "1 minute")).count(),
    "session_window": lambda rows: rows.groupBy("user", sql.session_window("at", "5 minutes")).count(),
    "dropDuplicates": lambda rows: rows.dropDuplicates(["user"]),
    "dropDuplicates of all": lambda rows: rows.select("user").dropDuplicates(),
    "dropDuplicatesWithinWatermark": lambda rows: rows.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(
        ["user"]
    ),
    "a window deep inside": lambda rows: (
        rows.join(rows.groupBy(sql.window("at", "1 hour"), "user").count(), "user").select("user").limit(5)
    ),
    "a window in SQL": lambda rows: (
        rows.createOrReplaceTempView("stateful"),
        rows.sparkSession.sql("SELECT window(at, '5 minutes').start, count(*) FROM stateful GROUP BY 1"),
    )[1],
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_transform_that_needs_memory_across_batches_is_refused_with_advice(spark, name):
    with pytest.raises(ConfigError, match="needs state across batches") as refused:
        look(spark, STATEFUL[name])
    assert "the transform uses " in refused.value.message
    assert refused.value.hint


@sql.udf(StringType())
def shout(text):
    return None if text is None else text.upper()


STATELESS = {
    "nothing": lambda rows: rows,
    "filter": lambda rows: rows.where("page IS NOT NULL"),
    "group": lambda rows: rows.groupBy("user").agg(sql.count("*").alias("clicks")),
    "a Python function": lambda rows: rows.withColumn("user", shout("user")),
    "a column named window": lambda rows: rows.where("window = 'x'").groupBy("window").count(),
    "the word in a text": lambda rows: rows.where("page = 'EventTimeWatermark'").withColumn(
        "note", sql.lit('{"class": "org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark"}')
    ),
    "the word as a column": lambda rows: rows.selectExpr("user AS EventTimeWatermark", "page AS Deduplicate"),
    "the word as a temporary view": lambda rows: rows.alias("TimeWindow").select("TimeWindow.user"),
    "a ranking": lambda rows: rows.withColumn("rank", sql.row_number().over(Window.partitionBy("user").orderBy("at"))),
    "a truncated time": lambda rows: rows.groupBy(sql.date_trunc("hour", "at")).count(),
    "a union": lambda rows: rows.union(rows),
    "SQL": lambda rows: (rows.createOrReplaceTempView("plain"), rows.sparkSession.sql("SELECT user FROM plain"))[1],
}


@pytest.mark.parametrize("name", STATELESS)
def test_a_transform_that_looks_at_one_batch_alone_is_accepted(spark, name):
    assert look(spark, STATELESS[name]).columns


def test_an_unknown_column_is_named_before_anything_runs(spark):
    with pytest.raises(ConfigError, match="the transform does not fit the rows") as refused:
        look(spark, lambda rows: rows.where("pagee IS NOT NULL"))
    assert "pagee" in refused.value.message
    assert "page" in refused.value.message
    assert len(refused.value.message) < 700


def test_sql_that_does_not_parse_is_named_before_anything_runs(spark):
    with pytest.raises(ConfigError, match="the transform does not fit the rows"):
        look(spark, lambda rows: rows.sparkSession.sql("SELEKT 1"))


@pytest.mark.parametrize(("returned", "named"), [(None, "NoneType"), (5, "int"), ([], "list")])
def test_a_transform_that_returns_no_frame_is_refused(spark, returned, named):
    with pytest.raises(ConfigError, match=f"the transform returned {named}, expected a DataFrame"):
        look(spark, lambda rows: returned)


def pipeline(topic, transform, sink, **changes):
    return hr.Pipeline(
        name="clicks",
        source=hr.Kafka(topic.bootstrap, topics=[topic.name], format=FORMAT),
        transform=transform,
        sink=sink,
        offsets=stores.Memory(),
        guarantee="at-least-once",
        **changes,
    )


@pytest.mark.parametrize(
    "transform", [lambda rows: rows.select("nowhere"), STATEFUL["dropDuplicates"], lambda rows: None]
)
def test_a_transform_that_cannot_work_ends_the_run_before_anything_is_read_or_written(spark, topic, transform):
    where = topic(partitions=1)
    where.produce([{"user": "ann"}])
    sink, seen = sinks.Memory(), []
    with pytest.raises(ConfigError):
        pipeline(where, transform, sink).run(until="caught-up", session=spark, observer=seen.append)
    assert sink.rows == []
    assert seen == []


def test_a_stateful_transform_that_raises_on_no_rows_is_refused_at_its_first_batch(spark, topic):
    where = topic(partitions=1)
    where.produce([{"user": "ann"}, {"user": "ann"}])
    sink = sinks.Memory()

    def transform(rows):
        first = rows.collect()[0]["user"]
        return rows.dropDuplicates(["user"]).where(sql.col("user") == first)

    with pytest.raises(ConfigError, match="needs state across batches"):
        pipeline(where, transform, sink).run(until="caught-up", session=spark)
    assert sink.rows == []


DECODED = {
    "json": (hr.Json("user STRING, page STRING"), None),
    "json, bad records kept": (hr.Json("user STRING, page STRING", on_error="keep"), None),
    "json with keys": (hr.Json("user STRING, page STRING"), hr.Json("of STRING")),
    "custom": (hr.Custom.each(lambda value: {"user": value.decode()}, "user STRING"), None),
}


@pytest.mark.parametrize("name", DECODED)
def test_a_partition_column_of_the_clock_is_refused_at_the_first_batch_if_the_transform_raised_on_no_rows(
    spark, topic, tmp_path, name
):
    """Its plan is that of a batch, in which the decoder has expressions that look as if they were not deterministic."""
    where = topic(partitions=1)
    where.produce([{"user": "ann", "page": "home"}], key=b'{"of": "x"}')
    values, keys = DECODED[name]

    def partitioned(day):
        def transform(rows):
            rows.collect()[0]
            return rows.selectExpr("*", f"{day} AS day")

        made = pipeline(where, transform, sinks.Parquet(tmp_path / "rows", partition_by="day"))
        source = hr.Kafka(where.bootstrap, topics=[where.name], format=values, key_format=keys)
        return replace(made, source=source, guarantee="exactly-once")

    with pytest.raises(ConfigError, match=r"current_date\(\) gives column day another value"):
        partitioned("current_date()").run(until="caught-up", session=spark, fail_fast=True)
    assert list(tmp_path.rglob("*.parquet")) == []
    assert partitioned("substr(user, 1, 1)").run(until="caught-up", session=spark, fail_fast=True).records == 1


def test_a_transform_that_raises_is_retried_and_its_rows_come_when_it_has_passed(spark, topic):
    where = topic(partitions=1)
    where.produce([{"user": "ann"}])
    sink, seen, left = sinks.Memory(), [], [2]

    def transform(rows):
        if left[0] > 0 and rows.count() > 0:
            left[0] -= 1
            raise LookupError("the rates are not there yet")
        return rows.select("user")

    pipeline(where, transform, sink).run(until="caught-up", session=spark, observer=seen.append)
    assert sink.rows == [{"user": "ann"}]
    assert [str(e.error) for e in seen if isinstance(e, events.Retrying)] == ["the rates are not there yet"] * 2


def test_the_frame_has_the_decoded_columns_and_the_origin(spark, topic):
    where = topic(partitions=2)
    where.produce([{"user": "ann"}, {"user": "bob"}], key=b"k", headers=[("h", b"v")])
    frames = []

    class Look(sinks.Sink):
        def write(self, batch, rows):
            frames.append((rows.columns, rows.collect()))

    engine = DirectEngine(spark, pipeline(where, lambda rows: rows, Look()))
    batch = Batch(1, tuple(Range(TopicPartition(where.name, number), 0, 1) for number in range(2)))
    engine.write(batch)
    ((columns, rows),) = frames
    assert columns == ["user", "page", "at", "window", "_kafka"]
    origins = {row["user"]: row["_kafka"].asDict(recursive=True) for row in rows}
    assert origins["bob"]["topic"] == where.name
    assert (origins["ann"]["partition"], origins["bob"]["partition"]) == (0, 1)
    assert (origins["ann"]["offset"], bytes(origins["ann"]["key"])) == (0, b"k")
    assert [(h["key"], bytes(h["value"])) for h in origins["ann"]["headers"]] == [("h", b"v")]
    assert origins["ann"]["timestamp"] is not None
    assert origins["ann"]["tombstone"] is False


def test_a_spark_session_that_has_gone_is_reported(spark, topic, monkeypatch):
    from headrace.spark import session

    engine = DirectEngine(spark, pipeline(topic(1), lambda rows: rows, sinks.Memory()))
    error = RuntimeError("Connection refused")
    assert engine.translate_error(error) is error
    monkeypatch.setattr(session, "alive", lambda spark: False)
    gone = engine.translate_error(error)
    assert isinstance(gone, HeadraceError)
    assert "Spark process has ended" in gone.message
    assert gone.hint
