"""Rows into Parquet files, by Spark's own writer on the executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core import topic_check
from headrace.spark.shared_settings import session_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

# How a reader that is not Spark expects Parquet: the calendar that everybody else uses, and no INT96, which has no
# statistics and is read as a time without a zone.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
}
_OPTIONS = {
    # What is published says that the job succeeded; a marker in the folder would be one more file to a reader.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Long texts are bounded by their beginnings, the upper one rounded up. Otherwise Parquet leaves the statistics of
    # the longest out, and deltalake's Arrow dataset takes bounds that only some files have for ones that exclude the
    # others.
    "parquet.statistics.truncate.length": "64",
}


def write_files(rows: DataFrame, place: str, partition_by: Sequence[str] = ()) -> int:
    """Write `rows` below `place`, which must not exist; the number of rows."""
    from pyspark.sql import Observation, functions

    counted = Observation()
    writer = rows.observe(counted, functions.count(functions.lit(1)).alias("rows")).write.options(**_OPTIONS)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    with session_settings(rows.sparkSession, _SETTINGS):
        writer.parquet(place)
    topic_check.verify()
    return int(counted.get.get("rows", 0))
