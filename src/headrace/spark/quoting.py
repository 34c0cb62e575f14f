"""Names and texts, quoted for Spark SQL; and the parser told to take them as they are."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SUBSTITUTE = "spark.sql.variable.substitute"
_VERBATIM = {SUBSTITUTE: "false", "spark.sql.parser.escapedStringLiterals": "false"}
_LOCK = threading.Lock()
_INSIDE: dict[str, tuple[int, dict[str, str]]] = {}
"""By session: how many are in `verbatim`, and the settings to restore."""


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
    """Within, SQL is parsed as it is written, whatever the session says: a name cannot be escaped as a text can.

    Several threads may share a session: the last one to leave restores its settings.
    """
    session = str(cast("Any", spark)._jsparkSession.sessionUUID())
    with _LOCK:
        inside, changed = _INSIDE.get(session, (0, {}))
        if not inside:
            before = {name: str(spark.conf.get(name)) for name in _VERBATIM}
            changed = {name: value for name, value in before.items() if value != _VERBATIM[name]}
            for name in changed:
                spark.conf.set(name, _VERBATIM[name])
        _INSIDE[session] = inside + 1, changed
    try:
        yield
    finally:
        with _LOCK:
            inside, changed = _INSIDE.pop(session)
            if inside > 1:
                _INSIDE[session] = inside - 1, changed
            else:
                for name, value in changed.items():
                    spark.conf.set(name, value)
