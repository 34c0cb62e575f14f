"""Parquet beyond its contract: partitions, timestamps, and which files count."""

import json
import re
import uuid
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from headrace import sinks
from headrace.config import load
from headrace.errors import ConfigError, RetriableError
from headrace.lake.columns import listed
from headrace.testing.sinks import batch, frame, numbered

LAYOUTS = ["rename", "manifest"]
PAGE = (Path(__file__).parents[2] / "docs" / "sinks" / "parquet.md").read_text()


def days(spark, rows):
    """Rows with a text column `day`."""
    return spark.createDataFrame(rows, "id BIGINT, day STRING")


@pytest.fixture
def remote(spark, tmp_path):
    """A path with a scheme of its own, whose files are here."""
    name = f"lake{uuid.uuid4().hex[:8]}"
    (tmp_path / "mounted").mkdir()
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set(f"fs.viewfs.mounttable.{name}.link./lake", (tmp_path / "mounted").as_uri())
    return f"viewfs://{name}/lake/rows", tmp_path / "mounted" / "rows"


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


@pytest.mark.parametrize("visible", LAYOUTS)
def test_several_partition_columns_nest_in_the_order_given(spark, tmp_path, visible):
    with sinks.Parquet(tmp_path / "out", partition_by=["kind", "day"], visible=visible).open("clicks") as sink:
        sink.write(batch(1, 0, 2), days(spark, [(1, "x"), (2, "y")]).selectExpr("*", "id % 2 AS kind"))
        files = sink.files()
    assert sorted("/".join(file.split("/")[-3:-1]) for file in files) == ["kind=0/day=y", "kind=1/day=x"]


@pytest.mark.parametrize(
    ("partition_by", "schema", "message"),
    [
        ("day", "id BIGINT, text STRING", "which the rows do not have: id, text"),
        ("Day", "id BIGINT, day STRING", "which the rows do not have"),
        ("a", "a MAP<STRING, INT>, b INT", "map makes no directory names"),
        ("a", "a BINARY, b INT", "binary makes no directory names"),
        (["a", "b"], "a INT, b INT, _kafka STRUCT<topic: STRING>", "names every column"),
        (None, "a INT, A INT", "have a twice"),
        (None, "a INT, Headrace_Batch STRING", "a name of ours"),
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
        listed(given)
    assert refused.value.hint


# timestamps


@pytest.mark.parametrize("visible", LAYOUTS)
def test_timestamps_are_written_so_that_others_read_them_and_the_session_is_left_as_it_was(spark, tmp_path, visible):
    key = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(key, None)
    with sinks.Parquet(tmp_path / "out", visible=visible).open("clicks") as sink:
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


@pytest.mark.parametrize("visible", LAYOUTS)
@pytest.mark.parametrize("name", ["with space", "100%25", "naïve"])
def test_a_path_may_have_an_odd_name(spark, tmp_path, name, visible):
    with sinks.Parquet(tmp_path / name, visible=visible).open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        files = sink.files()
    assert all(file.startswith(str(tmp_path / name)) for file in files)
    assert sorted(duckdb.execute("SELECT id, text FROM read_parquet($1)", [files]).fetchall()) == numbered(0, 3)


def test_a_manifest_tells_batch_files_rows_and_sizes(spark, tmp_path):
    made = batch(7, 0, 3)
    with sinks.Parquet(tmp_path, visible="manifest").open("clicks") as sink:
        sink.write(made, frame(spark, numbered(0, 3)))
        files = sink.files()
    (manifest,) = (tmp_path / "_headrace" / "manifests").iterdir()
    assert manifest.name == f"clicks-{made.fingerprint}.json"
    told = json.loads(manifest.read_text())
    assert told["rows"] == 3
    assert told["batch"] == json.loads(made.to_json())
    assert sorted(str(tmp_path / file["path"]) for file in told["files"]) == files
    assert all((tmp_path / file["path"]).stat().st_size == file["size"] for file in told["files"])


def test_files_without_a_manifest_do_not_count_and_a_repeat_does_not_use_them(spark, tmp_path):
    with sinks.Parquet(tmp_path, visible="manifest").open("clicks") as sink:
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        (manifest,) = (tmp_path / "_headrace" / "manifests").iterdir()
        manifest.unlink()
        left = set(tmp_path.glob("data/*"))
        assert sink.files() == []
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        assert duckdb.sql(f"SELECT count(*) FROM read_parquet({sink.files()})").fetchall() == [(3,)]
    # Not removed either: whether a rival still writes them cannot be told.
    assert left < set(tmp_path.glob("data/*"))


def test_nothing_is_renamed_into_the_dataset_on_another_file_system_but_its_manifest(spark, remote):
    place, here = remote
    with sinks.Parquet(place).open("clicks") as sink:
        for _ in range(2):
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        (data,) = (here / "data").iterdir()
        assert [file.name for file in (here / "_headrace" / "manifests").glob("*.json")] == [
            f"clicks-{batch(1, 0, 3).fingerprint}.json"
        ]
        assert {file.rpartition("/")[0] for file in sink.files()} == {f"{place}/data/{data.name}"}
        assert spark.read.parquet(*sink.files()).count() == 3


def test_a_scheme_that_spark_does_not_know_is_a_mistake_with_a_hint(spark):
    with pytest.raises(ConfigError, match="no file system") as refused:
        sinks.Parquet("unheard://bucket/rows").files(spark)
    assert "spark.jars.packages" in refused.value.hint


def test_a_place_that_does_not_answer_may_answer_later(spark):
    # A port that nobody listens on, and no patience.
    spark.sparkContext._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")
    with pytest.raises(RetriableError, match=r"hdfs://127\.0\.0\.1:1/rows"):
        sinks.Parquet("hdfs://127.0.0.1:1/rows").files(spark)


def test_one_path_has_one_layout(spark, tmp_path):
    with sinks.Parquet(tmp_path / "a").open("clicks") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
    with pytest.raises(ConfigError, match="made visible by rename"):
        sinks.Parquet(tmp_path / "a", visible="manifest").open("clicks")
    with sinks.Parquet(tmp_path / "b", visible="manifest").open("clicks") as sink:
        sink.write(batch(1, 0, 1), frame(spark, numbered(0, 1)))
    with pytest.raises(ConfigError, match="made visible by manifest"):
        sinks.Parquet(tmp_path / "b").open("clicks")


@pytest.mark.parametrize("name", ["manifests", "data", "merged", "lock"])
@pytest.mark.parametrize("visible", LAYOUTS)
def test_a_pipeline_may_be_called_like_one_of_our_folders(spark, tmp_path, name, visible):
    for number in range(2):
        with sinks.Parquet(tmp_path / "out", visible=visible).open(name) as sink:
            sink.write(batch(number, number, number + 1), frame(spark, numbered(number, number + 1)))
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet({sink.files()})").fetchall() == [(2,)]


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ConfigError, match="unknown"):
        sinks.Parquet("x", visible="never")
    with pytest.raises(ConfigError, match="atomic rename"):
        sinks.Parquet("s3a://bucket/x", visible="rename")
    assert repr(sinks.Parquet("s3a://bucket/x/", partition_by="a")) == (
        "sinks.Parquet('s3a://bucket/x', partition_by=['a'])"
    )


# the page


def test_the_python_of_the_page_runs(spark, tmp_path):
    for place, visible in (("out/clicks", "rename"), ("lake/clicks", "manifest")):
        with sinks.Parquet(tmp_path / place, partition_by="day", visible=visible).open("clicks") as sink:
            sink.write(batch(1, 0, 2), days(spark, [(1, "2026-11-01"), (2, "2026-11-02")]))
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    # Spark's working directory is the one that its process was started in.
    lines = re.sub(r'([\'"])(out|lake)/', rf"\g<1>{tmp_path}/\2/", code).splitlines()
    names, read = {"spark": spark}, []
    for line in lines:
        if line.startswith(("spark.read", "duckdb.")):
            found = eval(line, names)
            read.append(found.count() if line.startswith("spark") else found.fetchall()[0][0])
        else:
            exec(line, names)
    assert read == [2, 2, 2, 2, 2]


def test_the_toml_of_the_page_names_the_sink(tmp_path):
    (sink,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    file = tmp_path / "clicks.toml"
    source = '[source]\nkafka = "localhost:9092"\ntopics = ["clicks"]\nformat = { json = "country STRING, day DATE" }\n'
    file.write_text(f'name = "clicks"\nguarantee = "exactly-once"\n{source}{sink}')
    assert repr(load(str(file)).pipeline.sink) == (
        "sinks.Parquet('s3a://lake/clicks', partition_by=['country', 'day'])"
    )
