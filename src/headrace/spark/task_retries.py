"""Checks that Spark never runs a task twice: at-most-once would write rows twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OFF = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.ignoreDecommissionFetchFailure": "false",
    "spark.decommission.enabled": "false",
    "spark.speculation": "false",
}
"""Settings of a session that never repeats a task."""
_DEFAULTS = {
    "spark.task.maxFailures": "4",
    "spark.stage.maxConsecutiveAttempts": "4",
    "spark.stage.ignoreDecommissionFetchFailure": "true",
}
_LOCAL = re.compile(r"local(\[\s*(?:\d+|\*)\s*(?:,\s*(?P<failures>\d+)\s*)?\])?")


def is_local(master: str) -> bool:
    """Whether driver and tasks are in one JVM. Not so for `local-cluster[…]`, which has executors."""
    return _LOCAL.fullmatch(master.strip()) is not None


def refuse_retries(spark: SparkSession) -> None:
    """Raise ConfigError if `spark` may repeat a task."""
    settings = dict(spark.sparkContext.getConf().getAll())
    if found := retry_settings(settings):
        master = settings.get("spark.master", "")
        local = {"spark.master": re.sub(r"\s*,.*]", "]", master)} if is_local(master) else {}
        options = " ".join(f"--conf {name}={value}" for name, value in {**local, **OFF}.items())
        raise ConfigError(
            f"at-most-once needs a Spark session that never repeats a task, got {', '.join(found)}",
            hint=f"start the session with {options}",
        )


def retry_settings(settings: Mapping[str, str]) -> list[str]:
    """The settings, explicit or by default, that let Spark repeat a task: `name=value`."""
    master = settings.get("spark.master", "")
    local = _LOCAL.fullmatch(master.strip())
    # In one JVM Spark takes the number of attempts from the master, not from a setting.
    from_master = [f"spark.master={master}"] if local and (local["failures"] or "1") != "1" else []
    names = [name for name in OFF if not (local and name == "spark.task.maxFailures")]
    values = {name: settings.get(name, _DEFAULTS.get(name, "false")) for name in names}
    return from_master + [f"{name}={value}" for name, value in values.items() if value.strip().lower() != OFF[name]]
