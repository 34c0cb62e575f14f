"""Writes rows to Parquet files with Spark's own writer on the executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core import topic_check
from headrace.spark.shared_settings import session_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

# For readers other than Spark: the standard calendar, and no INT96, which has no statistics and is read as a time
# without a zone.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
}
_OPTIONS = {
    # Publishing shows that the job succeeded; readers would see a marker file in the folder as another file.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Truncate the bounds of long texts, rounding the upper one up. Otherwise Parquet omits the statistics of very long
    # texts, and deltalake's Arrow dataset treats bounds that only some files have as excluding the other files.
    "parquet.statistics.truncate.length": "64",
}


def write_files(rows: DataFrame, path: str, partition_by: Sequence[str] = ()) -> int:
    """Write `rows` below `path`, which must not exist; return the number of rows."""
    from pyspark.sql import Observation, functions

    observation = Observation()
    writer = rows.observe(observation, functions.count(functions.lit(1)).alias("rows")).write.options(**_OPTIONS)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    with session_settings(rows.sparkSession, _SETTINGS):
        writer.parquet(path)
    topic_check.verify()
    return int(observation.get.get("rows", 0))
