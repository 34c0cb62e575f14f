"""Encode errors: an Avro schema that does not match the columns, and values that a schema does not allow."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.core.error_markers import AVRO_NULL, AVRO_SCHEMA_MISMATCH, is_avro_missing, unencodable_reason
from headrace.errors import BadRecord, ConfigError
from headrace.spark.jvm_errors import avro_missing
from headrace.spark.sql import verbatim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


def check_schema(rows: DataFrame, encoding: str) -> None:
    """Encode a row of NULLs: Spark compares a schema with the columns at the first row, no sooner."""
    from pyspark.sql import functions as sql

    nulls = [sql.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema]
    try:
        with verbatim(rows.sparkSession):
            rows.sparkSession.range(0, 1, 1, 1).select(*nulls).select(sql.expr(encoding)).collect()
    except Exception as error:
        if is_avro_missing(error):
            raise avro_missing() from error
        if AVRO_NULL.search(str(error)):  # the schema matches: Spark has reached the values
            return
        if reasons := AVRO_SCHEMA_MISMATCH.findall(str(error)):
            raise ConfigError(
                f"the Avro schema does not match the columns: {reasons[-1]}",
                hint="correct schema=, or select and cast the columns in the transform",
            ) from error
        raise


@contextmanager
def translate_encode_errors(sink: str) -> Iterator[None]:
    """Raise BadRecord for a value that a schema does not allow: repeating the batch would not help."""
    try:
        yield
    except Exception as error:
        if (reason := unencodable_reason(error)) is not None:
            raise BadRecord(
                f"{sink}: {reason}", hint="leave such rows out in the transform, or allow the value in the schema"
            ) from error
        raise
