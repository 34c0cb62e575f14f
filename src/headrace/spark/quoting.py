"""Names and texts, quoted for Spark SQL; and the parser told to take them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.shared_settings import settings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

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
    """Within, SQL is parsed as it is written, whatever the session says: a name cannot be escaped as a text can."""
    return settings(spark, _VERBATIM)
