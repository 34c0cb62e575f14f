"""Hive beyond its contract: partitions that appear together, tables that do not fit, a metastore of one process."""

import datetime
import re
import subprocess
import sys
import threading
import uuid
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from headrace.connectors.hive.sink import Hive
from headrace.connectors.shared.file_store import file_store_at
from headrace.errors import ConfigError
from headrace.support import crashpoints
from headrace.testing.sinks import batch, frame, numbered
from support.interleaving import Died, die, meanwhile
from support.project import ROOT


@pytest.fixture
def table(spark):
    """The name of a table that no other test has."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def rows_of(spark, table, columns="id, text"):
    return sorted(map(tuple, spark.sql(f"SELECT {columns} FROM {table}").collect()))


def test_values_of_every_kind_come_back_from_partitions(spark, table):
    days = [datetime.date(2026, 11, 1), None]
    texts = ["plain", "a/b=c d%20é", "it's \\ 100%", None]
    rows = [(number, day, text) for number, (day, text) in enumerate((d, t) for d in days for t in texts)]
    with Hive(table, partition_by=["day", "kind"]).open("clicks") as sink:
        sink.write(batch(1, 0, 8), spark.createDataFrame(rows, "id BIGINT, day DATE, kind STRING"))
        sink.write(batch(2, 8, 9), spark.createDataFrame([(8, *rows[1][1:])], "id BIGINT, day DATE, kind STRING"))
    key = str
    found = spark.sql(f"SELECT id, day, kind FROM {table}").collect()
    assert sorted(map(tuple, found), key=key) == sorted([*rows, (8, *rows[1][1:])], key=key)
    assert spark.sql(f"SELECT id FROM {table} WHERE day = DATE '2026-11-01' AND kind = 'plain'").collect() == [(0,)]


def test_numbers_and_booleans_make_partitions(spark, table):
    with Hive(table, partition_by=["n", "b"]).open("clicks") as sink:
        sink.write(batch(1, 0, 2), spark.sql("SELECT 1L AS id, 5 AS n, TRUE AS b UNION ALL SELECT 2L, NULL, FALSE"))
    assert rows_of(spark, table, "id, n, b") == [(1, 5, True), (2, None, False)]


def test_all_partitions_of_a_batch_appear_at_once_however_many(spark, table):
    seen, done, reading = set(), threading.Event(), threading.Event()
    with Hive(table, partition_by="kind").open("clicks") as sink:
        sink.prepare(StructType.fromDDL("id BIGINT, kind BIGINT"))

        def read():
            while not done.is_set():
                seen.add(spark.sql(f"SHOW PARTITIONS {table}").count())
                reading.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            assert reading.wait(60)
            sink.write(batch(1, 0, 250), spark.range(250).selectExpr("id", "id AS kind").coalesce(1))
            assert spark.sql(f"SHOW PARTITIONS {table}").count() == 250
        finally:
            done.set()
            reader.join(60)
    assert seen <= {0, 250}
    assert spark.conf.get("spark.sql.addPartitionInBatch.size") == "100"


def test_what_is_not_yet_added_is_invisible_even_to_a_repair_and_goes_with_the_repeat(spark, table, tmp_path):
    with Hive(table, location=str(tmp_path / "t")).open("clicks") as sink:
        with meanwhile("hive: claimed", die), pytest.raises(Died):
            sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        (dead,) = {file.parent for file in tmp_path.rglob("*.parquet")}
        spark.sql(f"MSCK REPAIR TABLE {table}")
        assert rows_of(spark, table) == []
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
        assert rows_of(spark, table) == numbered(0, 3)
        assert list(dead.glob("*.parquet"))  # it had claimed the batch: its files count
        sink.write(batch(1, 0, 3), frame(spark, numbered(0, 3)))
    assert len({file.parent for file in tmp_path.rglob("*.parquet")}) == 1


def test_of_two_attempts_at_a_batch_the_later_one_is_refused_and_removes_no_files(spark, table):
    """Both check whether the batch is published before either of them adds its partitions."""
    reached = []

    def write():
        with Hive(table, partition_by="kind").open("clicks") as sink:
            sink.write(batch(1, 0, 4), frame(spark, numbered(0, 4)).selectExpr("id", "text", "id % 2 AS kind"))

    def overtake(point):
        reached.append(point)
        if reached.count("hive: claimed") == 1 and point == "hive: claimed":
            write()

    crashpoints.install(overtake)
    try:
        write()
    finally:
        crashpoints.install(None)
    assert (reached.count("hive: claimed"), reached.count("hive: partitions added")) == (2, 1)
    assert rows_of(spark, table) == numbered(0, 4)


@pytest.mark.parametrize("point", ["hive: files staged", "hive: claimed"])
def test_of_attempts_with_other_partition_values_one_is_seen(spark, table, point):
    """As with a transform that is not deterministic: what both would add has no partition in common."""

    def write(kind):
        with Hive(table, partition_by="kind").open("clicks") as sink:
            sink.write(batch(1, 0, 2), spark.range(2).selectExpr("id", f"'{kind}' AS kind"))

    with meanwhile(point, lambda: write("rival")):
        write("suspended")
    assert rows_of(spark, table, "id") == [(0,), (1,)]
    write("repeat")
    assert rows_of(spark, table, "id") == [(0,), (1,)]
    assert len({kind for _, kind in rows_of(spark, table, "id, kind")}) == 1


def test_a_table_that_is_there_takes_rows_by_name_and_columns_it_has_more_of_are_null(spark, table):
    spark.sql(
        f"CREATE TABLE {table} (text STRING, more INT, ID BIGINT, headrace_batch STRING)"
        " USING parquet PARTITIONED BY (headrace_batch)"
    )
    with Hive(table, create=False).open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert rows_of(spark, table, "id, text, more") == [(0, "row 0", None), (1, "row 1", None)]


def test_a_table_that_hive_itself_made_is_written_too(spark, table):
    spark.sql(f"CREATE TABLE {table} (id BIGINT, text STRING) PARTITIONED BY (headrace_batch STRING) STORED AS PARQUET")
    with Hive(table).open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert rows_of(spark, table) == numbered(0, 2)


@pytest.mark.parametrize(
    "there",
    [
        "(id STRING, text STRING, headrace_batch STRING) USING parquet PARTITIONED BY (headrace_batch)",
        "(id BIGINT, headrace_batch STRING) USING parquet PARTITIONED BY (headrace_batch)",
        "(id BIGINT, text STRING) USING parquet",
        "(id BIGINT, text STRING, headrace_batch STRING) USING parquet PARTITIONED BY (text, headrace_batch)",
    ],
)
def test_rows_that_do_not_fit_are_refused_with_both_sides_before_anything_is_read(spark, table, there):
    spark.sql(f"CREATE TABLE {table} {there}")
    with Hive(table).open("clicks") as sink:
        with pytest.raises(ConfigError, match="do not fit the table") as refused:
            sink.prepare(frame(spark, []).schema)
        assert "rows: id bigint, text string" in refused.value.message
        assert "table: id" in refused.value.message


def test_a_table_in_a_database_is_made_and_a_missing_one_named(spark, table):
    spark.sql("CREATE DATABASE IF NOT EXISTS lake")
    with Hive(f"lake.{table}").open("clicks") as sink:
        sink.write(batch(1, 0, 2), frame(spark, numbered(0, 2)))
    assert rows_of(spark, f"lake.{table}") == numbered(0, 2)
    spark.sql("DROP DATABASE lake CASCADE")
    with Hive(f"nowhere.{table}").open("clicks") as sink, pytest.raises(ConfigError, match="no such database"):
        sink.prepare(frame(spark, []).schema)


def test_without_create_a_missing_table_is_a_mistake(spark, table):
    with (
        Hive(table, create=False).open("clicks") as sink,
        pytest.raises(ConfigError, match="there is no table") as refused,
    ):
        sink.prepare(frame(spark, []).schema)
    assert refused.value.hint == "create=True makes it"


def test_a_session_without_hive_is_refused_with_the_option_to_give():
    plain = SimpleNamespace(conf=SimpleNamespace(get=lambda key, default: default))
    with Hive("t").open("clicks") as sink, pytest.raises(ConfigError, match="without") as refused:
        sink._prepare(plain, StructType.fromDDL("id INT"))
    assert refused.value.hint.startswith("--spark spark.sql.catalogImplementation=hive, or in the TOML file: [spark]")


@pytest.mark.parametrize("name", ["", "a.", "a.b.c", None])
def test_a_table_without_a_name_is_refused(name):
    with pytest.raises(ConfigError, match="table: expected the name of a table"):
        Hive(name)


def test_a_location_that_spark_has_no_file_system_for_is_a_mistake_with_a_hint(spark):
    with pytest.raises(ConfigError, match="no file system") as refused:
        file_store_at(spark, "unheard://bucket/rows")
    assert "spark.jars.packages" in refused.value.hint


def test_used_before_open_says_so(spark):
    with pytest.raises(ConfigError, match="used before open"):
        Hive("t").write(batch(1, 0, 1), frame(spark, numbered(0, 1)))


def test_the_statements_of_the_page_run(spark, table):
    page = (ROOT / "docs" / "sinks" / "hive.md").read_text().replace("clicks", table)
    (create,) = re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL)
    spark.sql(create)
    with Hive(table, partition_by="day", create=False).open("clicks") as sink:
        sink.write(batch(1, 0, 1), spark.sql("SELECT 'ada' AS user, '/' AS page, DATE '2026-11-01' AS day"))
    (query,) = re.findall(r"spark\.sql\(.*\)", page)
    assert eval(query).count() == 1
    (without,) = re.findall(r"`(SELECT \* EXCEPT.*?)`", page)
    assert spark.sql(without).columns == ["user", "page", "day"]
    (drop,) = re.findall(r"`(ALTER TABLE t\w+ DROP.*?)`", page)
    spark.sql(drop)
    assert rows_of(spark, table, "user") == []


_ALONE = """
import sys
from pyspark.sql.types import StructType
from headrace.errors import HeadraceError
from headrace.connectors.hive.sink import Hive
from headrace.spark import session

spark = session.create({
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Dderby.stream.error.file=/dev/null",
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": sys.argv[1] + "/warehouse",
    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={sys.argv[1]}/metastore;create=true",
})
try:
    Hive("t").open("clicks").prepare(StructType.fromDDL("id INT"))
    print("prepared", flush=True)
    sys.stdin.readline()
except HeadraceError as error:
    print(type(error).__name__, error.exit_code, error.message, flush=True)
spark.stop()
"""


def test_a_second_process_on_an_embedded_metastore_is_a_conflict(tmp_path):
    command = [sys.executable, "-c", _ALONE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "prepared\n"
            second = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, input="\n")
            assert second.stdout.startswith("OffsetConflict 3 t: another process has the metastore open"), second
        finally:
            holder.communicate("\n", timeout=120)
