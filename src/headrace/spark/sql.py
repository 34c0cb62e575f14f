"""Quotes names and literals for Spark SQL, and turns off the parser's variable substitution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.shared_settings import session_settings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

SUBSTITUTE = "spark.sql.variable.substitute"
_VERBATIM = {SUBSTITUTE: "false", "spark.sql.parser.escapedStringLiterals": "false"}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """`text` as a SQL string literal of Spark.

    Without a `$`: Spark replaces `${env:NAME}` in the text of a statement before it parses it, also in literals.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"


def verbatim(spark: SparkSession) -> AbstractContextManager[None]:
    """Within the block Spark parses SQL verbatim, whatever the session's settings are: names cannot be escaped."""
    return session_settings(spark, _VERBATIM)


def times_in_utc(rows: DataFrame) -> bool:
    """Whether the session's time zone is UTC."""
    return rows.sparkSession.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC", "Z")


def time_text(column: Expression, *, utc: bool) -> Expression:
    """A TIMESTAMP as text with its zone: a local time alone is ambiguous at the end of summer time."""
    from pyspark.sql import functions as sql

    if utc:
        return sql.concat(column.cast("string"), sql.lit("Z"))
    return sql.date_format(column, "yyyy-MM-dd HH:mm:ss.SSSSSSxxxxx")


def column_of(name: str) -> Expression:
    from pyspark.sql import functions as sql

    return sql.col(quoted(name))
