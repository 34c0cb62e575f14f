"""Creates the Spark session: Headrace's defaults, overridden by the user's options, and the connector jars."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.errors import ConfigError
from headrace.jars import cache
from headrace.spark import gateway, privacy, task_retries
from headrace.spark.sql import SUBSTITUTE
from headrace.support.tracebacks import short

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_STARTING = threading.Lock()
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")

# Records fetched for a range that is then read again (a repeated batch) stay in Spark's pool until they are evicted,
# about 12 MB per partition each time; with its default of five minutes a sink that is down would fill the heap.
_CONSUMER_CACHE = {
    "spark.kafka.consumer.fetchedData.cache.timeout": "20s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
}

# A corrupt length in an Avro record would allocate up to 2 GB, and an executor that runs out of memory dies.
_AVRO_LIMITS = {"string": 64 << 20, "bytes": 64 << 20, "collectionItems": 10_000_000}
_AVRO_FLAGS = " ".join(f"-Dorg.apache.avro.limits.{kind}.maxLength={limit}" for kind, limit in _AVRO_LIMITS.items())
# Not extraJavaOptions, which belong to the user: Spark puts the default options before them.
_DRIVER_OPTIONS = "spark.driver.defaultJavaOptions"
_JAVA_OPTIONS = {_DRIVER_OPTIONS: _AVRO_FLAGS, "spark.executor.defaultJavaOptions": _AVRO_FLAGS}


def defaults() -> dict[str, str]:
    """Settings for one machine. A cluster's own configuration and the options of the user win over them."""
    cores = os.cpu_count() or 1
    return {
        "spark.app.name": "headrace",
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        # Needs pandas, which Headrace does not require; without pandas every function would warn.
        "spark.sql.execution.pythonUDF.arrow.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # Spark would replace ${env:NAME} in a statement, also in quoted data.
        SUBSTITUTE: "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the connectors for Kafka and Avro to your own session builder; it keeps jars that it already has."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options: dict[str, Any] = builder._options
    user_jars = [jar for jar in str(options.get("spark.jars", "")).split(",") if jar]
    names = {Path(jar).name for jar in user_jars}
    own_jars = [str(jar) for jar in cache.connector() if jar.name not in names]
    for name, value in {**_CONSUMER_CACHE, **_JAVA_OPTIONS}.items():
        if name not in options:
            builder = builder.config(name, value)
    return builder.config("spark.jars", ",".join(user_jars + own_jars))


def create(options: Mapping[str, str], progress: Callable[[str], None] = lambda line: None) -> SparkSession:
    """The active session of this process, or a new one whose `options` override Headrace's defaults."""
    with _STARTING:  # runs may be started from several threads
        return active() or _create(options, progress)


def _create(options: Mapping[str, str], progress: Callable[[str], None]) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    cache.connector(progress)  # before Spark starts, so that a download shows its progress
    builder = SparkSession.builder
    builder._options = {}  # the class keeps options of earlier sessions in this process
    merged = {**defaults(), **options}
    merged = {**privacy.settings(merged["spark.master"]), **merged}
    if task_retries.is_local(merged["spark.master"]):
        merged = {**gateway.worker_settings(), **merged}
    # First, because Java uses the last of several options of one name.
    java_options = (
        f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}",
        f'"-Djava.io.tmpdir={privacy.create_scratch_directory()}"',
        merged.get(_DRIVER_OPTIONS, _AVRO_FLAGS),
    )
    merged[_DRIVER_OPTIONS] = " ".join(java_options)
    for name, value in merged.items():
        builder = builder.config(name, str(value))
    # pyspark writes the JVM's stack trace of every rejected query to stderr, before the error is reported.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    builder = configure(builder)
    with gateway.own_jvm(builder._options):
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            # Within the block: the message is read from the JVM, which ends with the block.
            raise ConfigError(
                f"Spark did not start: {short(error)}", hint="correct the [spark] or --spark options; headrace doctor"
            ) from error


def active() -> SparkSession | None:
    """The session of this process, whichever thread created it: pyspark has an active one per thread."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    stopped = session is None or session.sparkContext._jsc is None  # SparkContext.stop() leaves the session behind
    return None if stopped else session


def running() -> bool:
    """Whether this process has a session already."""
    return active() is not None


def alive(spark: SparkSession) -> bool:
    """Whether the JVM of a session responds."""
    try:
        cast("Any", spark.sparkContext._jvm).System.currentTimeMillis()
    except Exception:
        return False
    return True
