"""Settings of a session that are other ones for a moment, also where several runs share the session."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


@dataclass
class _Held:
    value: str
    changed: bool
    before: str | None
    """What the session itself had set."""
    users: int = 0


_HELD: dict[tuple[str, str], _Held] = {}
"""By session and name."""
_CHANGED = threading.Condition()


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Within, `spark` has these settings. The last one to leave restores what was there before.

    Who wants another value than others have waits until they have left.
    """
    session = str(cast("Any", spark)._jsparkSession.sessionUUID())
    held = {(session, name): value for name, value in wanted.items()}
    with _CHANGED:
        _CHANGED.wait_for(lambda: all(key not in _HELD or _HELD[key].value == value for key, value in held.items()))
        for (_, name), value in held.items():
            if (session, name) not in _HELD:
                changed = spark.conf.get(name) != value
                _HELD[session, name] = _Held(value, changed, spark.conf.get(name, None) if changed else None)
                if changed:
                    spark.conf.set(name, value)
            _HELD[session, name].users += 1
    try:
        yield
    finally:
        with _CHANGED:
            for key in held:
                _HELD[key].users -= 1
                if not _HELD[key].users:
                    _restore(spark, key[1], _HELD.pop(key))
            _CHANGED.notify_all()


def _restore(spark: SparkSession, name: str, held: _Held) -> None:
    if held.changed and held.before is None:
        spark.conf.unset(name)
    elif held.changed:
        spark.conf.set(name, str(held.before))
