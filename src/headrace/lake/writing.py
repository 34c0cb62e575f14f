"""Rows into Parquet files, by Spark's own writer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession


def write_files(rows: DataFrame, place: str, partition_by: Sequence[str]) -> int:
    """Write `rows` below `place`, which must not exist; the number of rows."""
    from pyspark.sql import Observation, functions

    counted = Observation()
    writer = rows.observe(counted, functions.count(functions.lit(1)).alias("rows")).write
    # What is published says that the job succeeded; a marker in the folder would be one more file to a reader.
    writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    # INT96 is Spark's default, has no statistics, and other readers take it for a time without a zone.
    with setting(rows.sparkSession, "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"):
        writer.parquet(place)
    return int(counted.get.get("rows", 0))


@contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """An option of the session, for a moment."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)
