"""What a transform does to the columns of a row, read off its plan: no Kafka is needed for it."""

import pytest
from pyspark.sql import functions as F

import headrace as hr
from headrace import sinks, stores
from headrace.engine.lineage import trace
from headrace.engine.source_readers import SourceReaders
from headrace.errors import ConfigError
from headrace.runtime.launch import check_transform

SOURCE = hr.Kafka("nowhere:1", topics=["clicks"], format=hr.Json("id BIGINT, user STRING, at TIMESTAMP"))
OTHER = hr.Kafka("nowhere:1", topics=["users"], format=hr.Json("id BIGINT, name STRING"))

VOLATILE = {
    "uuid": (lambda rows: rows.withColumn("k", F.expr("uuid()")), {"k": "uuid()"}),
    "the clock": (lambda rows: rows.withColumn("k", F.date_trunc("day", F.now())), {"k": "now()"}),
    "the day": (lambda rows: rows.select("id", F.current_date().alias("k")), {"k": "current_date()"}),
    "the time as a number": (lambda rows: rows.select(F.unix_timestamp().alias("k")), {"k": "current_timestamp()"}),
    "rand with a seed": (lambda rows: rows.withColumn("k", F.rand(7)), {"k": "rand()"}),
    "a running number": (
        lambda rows: rows.select(F.monotonically_increasing_id().alias("k")),
        {"k": "monotonically_increasing_id()"},
    ),
    "through two steps": (
        lambda rows: rows.withColumn("u", F.expr("uuid()")).select(F.concat("user", F.upper("u")).alias("k"), "id"),
        {"k": "uuid()"},
    ),
    "over a value of the record": (
        lambda rows: rows.withColumn("user", F.coalesce("user", F.expr("uuid()"))),
        {"user": "uuid()"},
    ),
    "one side of a union": (
        lambda rows: rows.select("id").union(rows.select(F.rand().cast("bigint"))),
        {"id": "rand()"},
    ),
    "out of an array": (lambda rows: rows.select(F.explode(F.array(F.rand())).alias("k")), {"k": "rand()"}),
    "a function that says so": (
        lambda rows: rows.select(F.udf(lambda x: x, "string").asNondeterministic()("user").alias("k")),
        {"k": "<lambda>(), which is marked as nondeterministic"},
    ),
}
STEADY = {
    "as it is": lambda rows: rows,
    "values of the record": lambda rows: rows.select(
        F.to_date("_kafka.timestamp").alias("k"), F.md5("user").alias("u")
    ),
    "a function": lambda rows: rows.select(F.udf(lambda x: x, "string")("user").alias("k")),
    "joined with itself": lambda rows: rows.alias("a").join(rows.select("id"), "id"),
    "another column": lambda rows: rows.withColumn("u", F.expr("uuid()")).drop("u"),
}


def result(spark, transform, source=SOURCE):
    given = SourceReaders(spark, source, "g", whole_partitions=True).empty_argument()
    return transform(given)


@pytest.mark.parametrize("name", VOLATILE)
def test_a_column_that_a_repeated_batch_gives_other_values_is_found_with_its_cause(spark, name):
    transform, columns = VOLATILE[name]
    assert trace(result(spark, transform)).columns == columns


@pytest.mark.parametrize("name", STEADY)
def test_columns_that_a_repeated_batch_gives_again_are_not_named(spark, name):
    assert trace(result(spark, STEADY[name])).columns == {}


def test_what_chooses_other_rows_the_next_time_is_found(spark):
    assert trace(result(spark, lambda rows: rows.where(F.rand() < 0.5))).rows == ["rand()"]
    assert trace(result(spark, lambda rows: rows.sample(0.5))).rows == ["sample()"]
    assert trace(result(spark, lambda rows: rows.limit(3))).rows == ["limit"]
    assert trace(result(spark, lambda rows: rows.where("id > 3"))).rows == []


def test_what_sees_one_batch_only_is_found(spark):
    static = spark.createDataFrame([(1, "a")], "id BIGINT, page STRING")

    def in_sql(query):
        def transform(rows):
            rows.createOrReplaceTempView("rows")
            return spark.sql(query)

        return transform

    def per_batch(transform, source=SOURCE):
        return trace(result(spark, transform, source)).per_batch

    assert per_batch(lambda rows: rows.groupBy("user").count()) == ["groupBy, agg or distinct"]
    assert per_batch(in_sql("SELECT DISTINCT user FROM rows")) == ["distinct"]
    assert per_batch(lambda rows: rows.withColumn("n", F.expr("row_number() OVER (ORDER BY id)"))) == [
        "a window function"
    ]
    assert per_batch(lambda rows: rows.join(rows.select("id"), "id")) == ["a join of a source with itself"]
    assert per_batch(
        lambda rows: rows["clicks"].join(rows["users"].drop("_kafka"), "id"), {"clicks": SOURCE, "users": OTHER}
    ) == ["a join of two sources"]
    assert per_batch(lambda rows: rows.join(static.groupBy("id").count(), "id")) == []
    assert per_batch(lambda rows: rows.where("id > 3")) == []


EXACT = {
    "Mongo": lambda tmp: sinks.Mongo("mongodb://nowhere/app", "clicks", key="k"),
    "Cassandra": lambda tmp: sinks.Cassandra("nowhere:9042", "app.clicks", key="k"),
    "DynamoDB": lambda tmp: sinks.DynamoDB("clicks", key=("id", "k")),
    "HBase": lambda tmp: sinks.HBase("nowhere:9090", "clicks", key="k"),
    "Redis": lambda tmp: sinks.Redis("redis://nowhere/0", "clicks", key="k"),
    "a set of Redis": lambda tmp: sinks.Redis("redis://nowhere/0", "clicks", structure="set"),
    "Jdbc": lambda tmp: sinks.Jdbc("jdbc:derby:x", table="clicks", key="k"),
    "Parquet": lambda tmp: sinks.Parquet(tmp / "out", partition_by="k"),
    "Hive": lambda tmp: sinks.Hive("clicks", partition_by="k"),
    "Delta": lambda tmp: sinks.Delta(tmp / "out", partition_by=["k"]),
    "a fan-out": lambda tmp: sinks.Fanout(
        [sinks.DuckDB(tmp / "x.duckdb", "t"), sinks.Parquet(tmp / "out", partition_by="k")]
    ),
}


def pipeline(sink, guarantee="exactly-once", transform=lambda rows: rows.withColumn("k", F.expr("uuid()"))):
    store = None if isinstance(sink, sinks.TransactionalSink) else stores.Memory()
    return hr.Pipeline(name="clicks", source=SOURCE, sink=sink, guarantee=guarantee, transform=transform, offsets=store)


@pytest.mark.parametrize("name", EXACT)
def test_a_key_that_changes_with_every_read_is_refused_where_it_would_double_rows(spark, tmp_path, name):
    made = pipeline(EXACT[name](tmp_path))
    with pytest.raises(ConfigError, match=r"uuid\(\) gives column k another value") as refused:
        check_transform(made, SourceReaders.of(spark, made))
    assert "exactly-once" in refused.value.message
    assert "_kafka" in refused.value.hint


def test_it_is_no_error_where_nothing_is_doubled(spark, tmp_path):
    keyed = sinks.DuckDB(tmp_path / "x.duckdb", "t", key="k", mode="upsert")
    for made in (
        pipeline(keyed),  # rows and offsets in one transaction: no batch is written twice
        pipeline(sinks.Parquet(tmp_path / "out")),  # a column beside the key
        pipeline(sinks.Parquet(tmp_path / "out", partition_by="k"), guarantee="at-least-once"),
        pipeline(
            sinks.Parquet(tmp_path / "out", partition_by="day"),
            transform=lambda rows: rows.withColumn("day", F.to_date("_kafka.timestamp")),
        ),
    ):
        assert check_transform(made, SourceReaders.of(spark, made)) is not None
