"""Rows that are encoded: whether an Avro schema fits their columns, and values that a schema does not allow."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.core.format import UNFIT
from headrace.errors import BadRecord, ConfigError
from headrace.spark.sql import verbatim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_UNFIT = re.compile(r"(?:IncompatibleSchema|SchemaParse|AvroType|AvroRuntime)Exception: (.+)")
_NULL = re.compile(r"AVRO_CANNOT_WRITE_NULL_FIELD\] (.+)")
_REFUSED = (
    _NULL,
    re.compile(r"NullPointerException: (null value for \(non-nullable\) .+)"),
    re.compile(r"IncompatibleSchemaException: (Cannot convert SQL .+ because .+ cannot be written .+)"),
    re.compile(rf"{UNFIT}(.+)"),
)
_ABSENT = "AVRO_NOT_LOADED"


def check(rows: DataFrame, encoding: str) -> None:
    """Encode a row of NULLs: Spark compares a schema with the columns when it meets the first row, no sooner."""
    from pyspark.sql import functions as sql

    nothing = [sql.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema]
    try:
        with verbatim(rows.sparkSession):
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
def unfit_refused(sink: str) -> Iterator[None]:
    """BadRecord for a value that a schema does not allow: to repeat the batch would not help."""
    try:
        yield
    except Exception as error:
        said = str(error)
        for pattern in _REFUSED:
            if found := pattern.search(said):
                raise BadRecord(
                    f"{sink}: {found[1].strip()}",
                    hint="leave such rows out in the transform, or allow the value in the schema",
                ) from error
        raise
