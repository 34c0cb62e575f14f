"""Parquet beyond its contract: partitions, timestamps, and which files count."""

import re
import uuid

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

import headrace as hr
from headrace import sinks, stores
from headrace.connectors.shared.file_store import Hadoop
from headrace.connectors.shared.partition_columns import parse_partition_by
from headrace.errors import ConfigError, RetriableError
from headrace.runtime.config import load
from headrace.testing.sinks import batch, frame, numbered
from support.hdfs import rows_at
from support.interleaving import Died, die, meanwhile
from support.project import ROOT

PAGE = (ROOT / "docs" / "sinks" / "parquet.md").read_text()


def days(spark, rows):
    """Rows with a text column `day`."""
    return spark.createDataFrame(rows, "id BIGINT, day STRING")


# partitions


def test_partitions_are_directories_inside_the_batch_and_come_back_as_columns(spark, tmp_path):
    rows = [(1, "2026-11-01"), (2, "2026-11-02"), (3, None), (4, "a/b=c d%20é")]
    with sinks.Parquet(tmp_path / "out", partition_by="day").open("clicks") as sink:
        sink.write(batch(1, 0, 4), days(spark, rows))
        sink.write(batch(2, 4, 5), days(spark, []))
        sink.write(batch(3, 5, 6), days(spark, [(5, "2026-11-01")]))
    (one,) = {path.parent.parent for path in (tmp_path / "out").rglob("day=2026-11-02/*.parquet")}
    assert one.name.startswith("headrace_batch=clicks-")
    found = spark.read.parquet(str(tmp_path / "out")).select("id", "day").collect()
    assert sorted(map(tuple, found)) == [*rows, (5, "2026-11-01")]
    read = duckdb.sql(f"SELECT id FROM read_parquet('{tmp_path}/out/**/*.parquet') WHERE day = '2026-11-01'").fetchall()
    assert sorted(read) == [(1,), (5,)]


def test_several_partition_columns_nest_in_the_order_given(spark, tmp_path):
    with sinks.Parquet(tmp_path / "out", partition_by=["kind", "day"]).open("clicks") as sink:
        sink.write(batch(1, 0, 2), days(spark, [(1, "x"), (2, "y")]).selectExpr("*", "id % 2 AS kind"))
        files = sink.files()
    assert sorted("/".join(file.split("/")[-3:-1]) for file in files) == ["kind=0/day=y", "kind=1/day=x"]


@pytest.mark.parametrize(
    ("partition_by", "schema", "message"),
    [
        ("day", "id BIGINT, text STRING", "which the rows do not have: id, text"),
        ("Day", "id BIGINT, day STRING", "which the rows do not have"),
        ("a", "a MAP<STRING, INT>, b INT", "the type map cannot be used"),
        ("a", "a BINARY, b INT", "the type binary cannot be used"),
        (["a", "b"], "a INT, b INT, _kafka STRUCT<topic: STRING>", "names every column"),
        (None, "a INT, A INT", "two columns named a"),
        (None, "a INT, Headrace_Batch STRING", "reserved by Headrace"),
    ],
)
def test_columns_that_cannot_work_are_refused_before_anything_is_read(tmp_path, spark, partition_by, schema, message):
    with sinks.Parquet(tmp_path / "out", partition_by=partition_by).open("clicks") as sink:
        with pytest.raises(ConfigError, match=message) as refused:
            sink.prepare(StructType.fromDDL(schema))
        assert refused.value.hint
        with pytest.raises(ConfigError, match=message):  # prepare() is not always called
            sink.write(batch(1, 0, 1), spark.createDataFrame([], schema))
    assert list((tmp_path / "out").glob("headrace_batch=*")) == []


@pytest.mark.parametrize("given", ["", [], [1], ["a", "A"], "headrace_batch", ["a", ""]])
def test_a_partition_by_that_no_rows_could_have_is_refused_at_once(given):
    with pytest.raises(ConfigError) as refused:
        parse_partition_by(given)
    assert refused.value.hint


# timestamps


def test_timestamps_are_written_so_that_others_read_them_and_the_session_is_left_as_it_was(spark, tmp_path):
    key = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(key, None)
    with sinks.Parquet(tmp_path / "out").open("clicks") as sink:
        sink.write(batch(1, 0, 1), spark.sql("SELECT TIMESTAMP '2026-11-01 12:00:00.123456Z' AS at"))
        (file,) = sink.files()
    assert pq.ParquetFile(file).schema.column(0).physical_type == "INT64"
    assert spark.conf.get(key, None) == before
    (found,) = duckdb.execute("""SELECT epoch_us("at") FROM read_parquet($1)""", [file]).fetchone()
    assert found == 1793534400123456


def test_the_session_is_left_as_it_was_when_a_write_fails(spark, tmp_path):
    key = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(key, "TIMESTAMP_MILLIS")
    try:
        with sinks.Parquet(tmp_path / "out").open("clicks") as sink, pytest.raises(Exception, match="broken"):
            sink.write(batch(1, 0, 1), spark.sql("SELECT raise_error('broken') AS a"))
        assert spark.conf.get(key) == "TIMESTAMP_MILLIS"
    finally:
        spark.conf.unset(key)


# which files count


@pytest.mark.parametrize("name", ["with space", "100%25", "naïve"])
def test_a_path_may_have_an_odd_name(spark, tmp_path, name):
    with sinks.Parquet(tmp_path / name).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        files = sink.files()
    assert all(file.startswith(str(tmp_path / name)) for file in files)
    assert sorted(duckdb.execute("SELECT id, text FROM read_parquet($1)", [files]).fetchall()) == numbered(0, 3)


@pytest.mark.parametrize("name", ["manifests", "data", "merged", "lock"])
def test_a_pipeline_may_be_called_like_one_of_our_folders(spark, tmp_path, name):
    for number in range(2):
        with sinks.Parquet(tmp_path / "out").open(name) as sink:
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet({sink.files()})").fetchall() == [(2,)]


# HDFS


@pytest.fixture
def url(hdfs):
    return f"{hdfs.address}/{uuid.uuid4().hex}"


def listed_below(spark, url):
    """The names of all files below, with their directories; those of Hadoop's checksums are not on HDFS."""
    return sorted(Hadoop(spark, url).list_files(""))


def test_of_two_attempts_at_a_batch_on_hdfs_one_is_published_and_the_other_leaves_nothing(spark, url):
    """Hadoop's plain rename would move the second into the directory of the first."""

    def write(rows):
        with sinks.Parquet(url).open("clicks") as sink:
            sink.write(batch(1, 0, 3), rows)

    rows = frame(spark, numbered(0, 3)).coalesce(1)
    with meanwhile("parquet: files staged", lambda: write(rows)):
        write(rows)
    (file,) = listed_below(spark, url)
    assert re.fullmatch(r"headrace_batch=clicks-[0-9a-f]+/part-[^/]+\.parquet", file)
    assert sorted(rows_at(url, "id", "text")) == numbered(0, 3)


def test_what_a_dead_run_left_aside_on_hdfs_goes_with_the_repeat_of_its_batch(spark, url):
    rows = frame(spark, numbered(0, 3)).coalesce(1)
    with sinks.Parquet(url).open("clicks") as sink:
        with meanwhile("parquet: files staged", die), pytest.raises(Died):
            sink.write(batch(1, 0, 3), rows)
        (dead,) = listed_below(spark, url)
        assert dead.startswith("_headrace/clicks/")
        assert rows_at(url, "id") == []
        sink.write(batch(1, 0, 3), rows)
        with meanwhile("parquet: renamed", die), pytest.raises(Died):
            sink.write(batch(2, 3, 4), frame(spark, numbered(3, 4)).coalesce(1))
        for _ in range(2):
            sink.write(batch(2, 3, 4), frame(spark, numbered(3, 4)).coalesce(1))
    assert [file.partition("=")[0] for file in listed_below(spark, url)] == ["headrace_batch"] * 2
    assert sorted(rows_at(url, "id", "text")) == numbered(0, 4)


@pytest.mark.parametrize("left", ["_headrace/manifests/clicks-0123.json", "data/headrace_batch=clicks-1/part.parquet"])
def test_a_dataset_with_manifests_on_hdfs_is_refused(spark, url, left):
    Hadoop(spark, url).put(left, b"{}")
    with sinks.Parquet(url).open("clicks") as sink, pytest.raises(ConfigError, match="a dataset with manifests"):
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert listed_below(spark, url) == [left]


def test_a_name_node_that_does_not_answer_may_answer_later(spark):
    # A port that nobody listens on, and no patience.
    spark.sparkContext._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")
    with (
        sinks.Parquet("hdfs://127.0.0.1:1/rows").open("clicks") as sink,
        pytest.raises(RetriableError, match=r"hdfs://127\.0\.0\.1:1/rows"),
    ):
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))


# the page


def test_the_python_of_the_page_runs(spark, tmp_path):
    with sinks.Parquet(tmp_path / "out/clicks", partition_by="day").open("clicks") as sink:
        sink.write(batch(1, 0, 2), days(spark, [(1, "2026-11-01"), (2, "2026-11-02")]))
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    # Spark's working directory is the one that its process was started in.
    lines = re.sub(r'([\'"])out/', rf"\g<1>{tmp_path}/out/", code).splitlines()
    names, read = {"spark": spark}, []
    for line in lines:
        if line.startswith(("spark.read", "duckdb.")):
            found = eval(line, names)
            read.append(found.count() if line.startswith("spark") else found.fetchall()[0][0])
        else:
            exec(line, names)
    assert read == [2, 2, 2, 2]


def test_the_toml_of_the_page_names_the_sink(tmp_path):
    (sink,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    file = tmp_path / "clicks.toml"
    source = '[source]\nkafka = "localhost:9092"\ntopics = ["clicks"]\nformat = { json = "country STRING, day DATE" }\n'
    file.write_text(f'name = "clicks"\nguarantee = "exactly-once"\n{source}{sink}')
    assert repr(load(str(file)).pipeline.sink) == (
        f"sinks.Parquet('{tmp_path}/out/clicks', partition_by=['country', 'day'])"
    )


def published(path):
    return sorted(file.name for file in path.iterdir() if file.name.startswith("headrace_batch="))


def test_a_reader_of_the_folder_sees_no_half_batch_while_one_is_written(spark, tmp_path):
    path = tmp_path / "out"
    with sinks.Parquet(path).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        broken = frame(spark, numbered(3, 9)).selectExpr("IF(id = 8, raise_error('broken'), id) AS id", "text")
        with pytest.raises(Exception, match="broken"):
            sink.write(batch(2, 3, 9), broken)
        assert len(published(path)) == 1
        assert spark.read.parquet(str(path)).count() == 3


def test_spark_and_duckdb_read_the_folder_while_the_pipeline_is_open(spark, tmp_path):
    path = tmp_path / "out"
    with sinks.Parquet(path).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        sink.write(batch(2, 3, 5), frame(spark, numbered(3, 5)))
        again = spark.read.parquet(str(path))
        assert sorted(again.columns) == ["headrace_batch", "id", "text"]
        assert sorted((row["id"], row["text"]) for row in again.collect()) == numbered(0, 5)
        found = duckdb.sql(f"SELECT id, text FROM read_parquet('{path}/**/*.parquet')").fetchall()
        assert sorted(found) == numbered(0, 5)


def test_what_a_dead_run_left_aside_is_cleared_and_what_a_live_one_has_is_not(tmp_path):
    path = tmp_path / "out"
    dead = path / "_headrace" / "clicks" / "dead"
    dead.mkdir(parents=True)
    (dead / "part.parquet").write_bytes(b"x")
    with sinks.Parquet(path).open("clicks"):
        assert not dead.exists()
        (live,) = (path / "_headrace" / "clicks").iterdir()
        with sinks.Parquet(path).open("clicks"):
            assert live.exists()
        assert live.exists()


def test_a_file_in_place_of_the_folder_is_a_mistake(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="expected a directory"):
        sinks.Parquet(tmp_path / "out").open("clicks")


def test_rows_that_parquet_cannot_hold_are_a_mistake_and_not_retried(spark, topic, tmp_path):
    where = topic(partitions=1)
    where.produce([{"id": 1}])
    pipeline = hr.Pipeline(
        name="clicks",
        source=hr.Kafka(where.bootstrap, topics=[where.name], format=hr.Json("id INT")),
        transform=lambda rows: rows.selectExpr("id", "id AS ID"),
        sink=sinks.Parquet(tmp_path / "out"),
        offsets=stores.Memory(),
        guarantee="exactly-once",
    )
    with pytest.raises(ConfigError):
        pipeline.run(until="caught-up", session=spark, fail_fast=True)
    assert published(tmp_path / "out") == []
