"""A session for notebooks and programs of one's own: with the connectors, also where one without them is there."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.spark import session as sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_SECONDS = 30.0
_CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceRDD"


def has_connector(spark: SparkSession) -> bool:
    """Whether the Kafka connector is on the class path of its driver."""
    return _loads(spark.sparkContext._jvm)


def _loads(jvm: Any) -> bool:
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
    """The Spark session of this process, of whichever thread, if it can read Kafka, or else a new one with `options`
    over our defaults.

    Jars cannot be added to a Java process that runs. A session without them is ended where `restart` says so, with its
    views and cached frames, and Spark starts again in this process; otherwise it is a ConfigError.
    """
    from pyspark import SparkContext

    active, context = sessions.active(), SparkContext._active_spark_context
    if active is not None and has_connector(active):
        return active
    there = active or context  # a context may be there without a session, and has cached data all the same
    if there is not None and not _loads(SparkContext._jvm):
        if not restart:
            raise ConfigError(
                "the active Spark session has no Kafka connector, and jars cannot be added while it runs",
                hint="spark = hr.session(restart=True), which ends it with its views and cached frames",
            )
        there.stop()
    if SparkContext._jvm is not None and not _loads(SparkContext._jvm):
        _end_java()
    return sessions.create(options or {}, progress)


def _end_java() -> None:
    """End the Java process that sessions of this process have left: it would be used again, without our jars."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # which it waits for
        process.wait(_SECONDS)
    SparkContext._gateway = SparkContext._jvm = None
