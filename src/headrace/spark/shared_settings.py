"""Changes settings of a session temporarily, also if several runs share the session."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


@dataclass
class _ChangedSetting:
    value: str
    changed: bool
    before: str | None
    """The value that the session had, if it was set."""
    users: int = 0


_IN_USE: dict[tuple[str, str], _ChangedSetting] = {}
"""By id of the session and name of the setting."""
_CHANGED = threading.Condition()


@contextmanager
def session_settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Within the block, `spark` has these settings. The last block to end restores the previous values.

    A block that needs another value than running ones waits until they have ended.
    """
    session = str(cast("Any", spark)._jsparkSession.sessionUUID())
    needed = {(session, name): value for name, value in values.items()}
    with _CHANGED:
        _CHANGED.wait_for(
            lambda: all(key not in _IN_USE or _IN_USE[key].value == value for key, value in needed.items())
        )
        for (_, name), value in needed.items():
            if (session, name) not in _IN_USE:
                changed = spark.conf.get(name) != value
                _IN_USE[session, name] = _ChangedSetting(
                    value, changed, spark.conf.get(name, None) if changed else None
                )
                if changed:
                    spark.conf.set(name, value)
            _IN_USE[session, name].users += 1
    try:
        yield
    finally:
        with _CHANGED:
            for key in needed:
                _IN_USE[key].users -= 1
                if not _IN_USE[key].users:
                    _restore(spark, key[1], _IN_USE.pop(key))
            _CHANGED.notify_all()


def _restore(spark: SparkSession, name: str, setting: _ChangedSetting) -> None:
    if setting.changed and setting.before is None:
        spark.conf.unset(name)
    elif setting.changed:
        spark.conf.set(name, str(setting.before))
