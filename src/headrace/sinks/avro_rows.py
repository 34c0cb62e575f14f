"""Rows that are encoded as Avro: whether the schema fits their columns, and a NULL where it allows none."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import BadRecord, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_UNFIT = re.compile(r"(?:IncompatibleSchema|SchemaParse|AvroType|AvroRuntime)Exception: (.+)")
_NULL = re.compile(r"AVRO_CANNOT_WRITE_NULL_FIELD\] (.+)")
_ABSENT = "AVRO_NOT_LOADED"


def check(rows: DataFrame, encoding: str) -> None:
    """Encode a row of NULLs: Spark compares a schema with the columns when it meets the first row, no sooner."""
    from pyspark.sql import functions as sql

    nothing = [sql.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema]
    try:
        rows.sparkSession.range(0, 1, 1, 1).select(*nothing).select(sql.expr(encoding)).collect()
    except Exception as error:
        said = str(error)
        if _ABSENT in said:
            raise ConfigError(
                "Spark's jar for Avro is not loaded",
                hint='spark-submit --jars "$(headrace jars path)", or hr.configure(builder)',
            ) from error
        if _NULL.search(said):  # it got as far as the values
            return
        if reasons := _UNFIT.findall(said):
            raise ConfigError(
                f"the Avro schema does not fit the columns: {reasons[-1]}",
                hint="correct schema=, or cast and select the columns as it has them in the transform",
            ) from error
        raise


@contextmanager
def nulls_refused(sink: str) -> Iterator[None]:
    """BadRecord for a NULL that a given schema does not allow: to repeat the batch would not help."""
    try:
        yield
    except Exception as error:
        if found := _NULL.search(str(error)):
            raise BadRecord(
                f"{sink}: {found[1]}",
                hint="leave such rows out in the transform, or allow null there in schema=",
            ) from error
        raise
