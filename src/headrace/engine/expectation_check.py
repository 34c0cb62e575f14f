"""Checks the rows of a batch against the conditions of `expect=`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql

from headrace.core.sink import without_metadata
from headrace.errors import BatchRefused, ConfigError
from headrace.support.tracebacks import short
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from headrace.types import Batch

_SAMPLES = 3


def analyse(rows: DataFrame, conditions: Mapping[str, float]) -> None:
    """ConfigError for a condition that does not match the columns of `rows`."""
    for condition in conditions:
        try:
            rows.where(condition)
        except AnalysisException as error:
            raise ConfigError(
                f"expect: {condition!r} does not fit the transform's result: {short(error)}",
                hint=f"its columns are: {', '.join(rows.columns)}",
            ) from error


def check(batch: Batch, rows: DataFrame, conditions: Mapping[str, float]) -> None:
    """BatchRefused, with sample rows, if too few rows meet a condition. A batch without rows passes."""
    counts = [sql.count_if(sql.expr(condition)) for condition in conditions]
    ((total, *met),) = rows.agg(sql.count(sql.lit(1)), *counts).collect()
    if not total:
        return
    failures = []
    for (condition, share), count in zip(conditions.items(), met, strict=True):
        if count / total < share:
            samples = without_metadata(rows.where(f"NOT coalesce({condition}\n, false)")).limit(_SAMPLES).toArrow()
            shown = "; ".join(str(row) for row in samples.to_pylist())
            failures.append(
                f"{condition}: {count / total:.2%} of {counted(total, 'row')}, expected at least {share:.2%};"
                f" failing rows: {shown}"
            )
    if failures:
        raise BatchRefused(
            f"batch {batch.id} does not meet the expectations and was not published: {' | '.join(failures)}",
            hint="look at the rows; correct the transform or the expectation, then start again",
        )
