"""Names and texts, quoted for Spark SQL; and the parser told to take them as they are."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@contextmanager
def verbatim(spark: SparkSession) -> Iterator[None]:
    """Within, SQL is parsed as it is written, whatever the session says: a name cannot be escaped as a text can."""
    before = {name: spark.conf.get(name) for name in _VERBATIM}
    changed = {name: value for name, value in _VERBATIM.items() if before[name] != value}
    try:
        for name, value in changed.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in changed:
            spark.conf.set(name, str(before[name]))
