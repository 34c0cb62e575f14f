"""A session with the connectors for notebooks and programs, also if a session without them is active."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.spark import session as sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_JVM_EXIT_SECONDS = 30.0
_CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceRDD"


def has_connector(spark: SparkSession) -> bool:
    """Whether the Kafka connector is on the class path of the driver."""
    return _has_connector(spark.sparkContext._jvm)


def _has_connector(jvm: Any) -> bool:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_CONNECTOR)
    except Exception:
        return False
    return True


def session(
    options: Mapping[str, str] | None = None,
    *,
    restart: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> SparkSession:
    """The Spark session of this process, of any thread, if it can read Kafka; otherwise a new one, whose `options`
    override Headrace's defaults.

    Jars cannot be added to a running JVM. With `restart` a session without them is ended, with its views and cached
    frames, and Spark starts again in this process. Without `restart` it is a ConfigError.
    """
    from pyspark import SparkContext

    active, context = sessions.active(), SparkContext._active_spark_context
    if active is not None and has_connector(active):
        return active
    running = active or context  # a context without a session may have cached data as well
    if running is not None and not _has_connector(SparkContext._jvm):
        if not restart:
            raise ConfigError(
                "the active Spark session has no Kafka connector, and jars cannot be added while it runs",
                hint="spark = hr.session(restart=True), which ends it with its views and cached frames",
            )
        running.stop()
    if SparkContext._jvm is not None and not _has_connector(SparkContext._jvm):
        _end_jvm()
    return sessions.create(options or {}, progress)


def _end_jvm() -> None:
    """End the JVM that earlier sessions of this process left: Spark would use it again, without the connector jars."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # the JVM ends then
        process.wait(_JVM_EXIT_SECONDS)
    SparkContext._gateway = SparkContext._jvm = None
