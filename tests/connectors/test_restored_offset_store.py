"""An offset store that was restored from an older backup than its sink: the run stops before rows are doubled."""

import shutil
from collections import Counter
from functools import partial

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import headrace as hr
from headrace import sinks, stores
from headrace.connectors.jdbc.connection import Database
from headrace.errors import OffsetConflict

DERBY = "org.apache.derby.iapi.jdbc.AutoloadedDriver"


def delta(folder, spark):
    path = folder / "rows"

    def stored():
        return DeltaTable(path).to_pyarrow_table()["id"].to_pylist()

    return partial(sinks.Delta, path), stored


def iceberg(folder, spark):
    def new_sink():
        return sinks.Iceberg("web.rows", properties=properties)

    properties = {"type": "sql", "uri": f"sqlite:///{folder / 'c.db'}", "warehouse": (folder / "w").as_uri()}
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("web")

    def stored():
        return catalog.load_table("web.rows").scan().to_arrow()["id"].to_pylist()

    return new_sink, stored


def jdbc(folder, spark):
    url = f"jdbc:derby:{folder / 'derby'};create=true"
    with Database(url, {}, DERBY).connected() as connection:
        connection.execute('CREATE TABLE "clicks" ("id" BIGINT)')

    def stored():
        rows = spark.read.format("jdbc").options(url=url, dbtable='"clicks"', driver=DERBY).load().collect()
        return [row[0] for row in rows]

    return lambda: sinks.Jdbc(url, table="clicks", driver=DERBY), stored


@pytest.mark.parametrize("made", [delta, iceberg, jdbc])
def test_a_store_that_is_older_than_its_sink_stops_the_run_and_nothing_is_doubled(topic, spark, tmp_path, made):
    source = topic(partitions=2)
    new_sink, stored = made(tmp_path, spark)
    offsets, backup = tmp_path / "offsets.db", tmp_path / "backup.db"

    def run(numbers):
        source.produce([{"id": n} for n in numbers])
        hr.Pipeline(
            name="clicks",
            source=hr.Kafka(source.bootstrap, topics=[source.name], format=hr.Json("id BIGINT")),
            sink=new_sink(),
            offsets=stores.SQLite(offsets),
            guarantee="exactly-once",
        ).run(until="caught-up", session=spark)

    run(range(10))
    shutil.copy(offsets, backup)
    run(range(10, 20))
    shutil.copy(backup, offsets)
    with pytest.raises(OffsetConflict, match="was the store restored from an older backup") as stopped:
        run(range(20, 30))
    assert "headrace offsets seek" in stopped.value.hint
    assert Counter(stored()) == Counter(range(20))
