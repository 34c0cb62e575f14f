"""The Spark session: our defaults, the user's options over them, and the connector's jars beside theirs."""

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
# some 12 MB a partition each time; its five minutes would let a sink that is down for long fill the heap.
_POOL = {
    "spark.kafka.consumer.fetchedData.cache.timeout": "20s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
}

# A corrupt length in a record of Avro would be allocated, up to 2 GB, and an executor that runs out of memory dies.
_AVRO_LIMITS = {"string": 64 << 20, "bytes": 64 << 20, "collectionItems": 10_000_000}
_AVRO_FLAGS = " ".join(f"-Dorg.apache.avro.limits.{kind}.maxLength={most}" for kind, most in _AVRO_LIMITS.items())
# Not the extraJavaOptions, which are the user's: Spark puts these before them.
_JAVA = {"spark.driver.defaultJavaOptions": _AVRO_FLAGS, "spark.executor.defaultJavaOptions": _AVRO_FLAGS}


def defaults() -> dict[str, str]:
    """Settings for one machine. A cluster's own configuration, or any option given, wins over them."""
    cores = os.cpu_count() or 1
    return {
        "spark.app.name": "headrace",
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        # Needs pandas, which is not ours to ask for; without it every function would warn.
        "spark.sql.execution.pythonUDF.arrow.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # ${env:NAME} in a statement, also in data that is quoted there, would become the variable.
        SUBSTITUTE: "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the connectors for Kafka and Avro to a session builder of your own; jars it already has stay."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options: dict[str, Any] = builder._options
    present = [jar for jar in str(options.get("spark.jars", "")).split(",") if jar]
    names = {Path(jar).name for jar in present}
    ours = [str(jar) for jar in cache.connector() if jar.name not in names]
    for name, value in {**_POOL, **_JAVA}.items():
        if name not in options:
            builder = builder.config(name, value)
    return builder.config("spark.jars", ",".join(present + ours))


def create(options: Mapping[str, str], progress: Callable[[str], None] = lambda line: None) -> SparkSession:
    """A session with `options` over our defaults, or the one that this process has already."""
    with _STARTING:  # runs may be started from several threads
        return active() or _create(options, progress)


def _create(options: Mapping[str, str], progress: Callable[[str], None]) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    cache.connector(progress)  # before Spark starts, so that a download is seen and not a silent wait
    builder = SparkSession.builder
    builder._options = {}  # the class keeps options of earlier sessions in this process
    merged = {**defaults(), **options}
    merged = {**privacy.settings(merged["spark.master"]), **merged}
    if task_retries.is_local(merged["spark.master"]):
        merged = {**gateway.worker_settings(), **merged}
    java_options = merged.get("spark.driver.extraJavaOptions", "")
    if "java.io.tmpdir" not in java_options:
        java_options = f'"-Djava.io.tmpdir={privacy.scratch_directory()}" {java_options}'
    if "log4j" not in java_options:
        java_options = f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()} {java_options}"
    merged["spark.driver.extraJavaOptions"] = java_options.strip()
    for name, value in merged.items():
        builder = builder.config(name, str(value))
    # pyspark writes the JVM's stack trace of every refused query to stderr, before the error is told.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    builder = configure(builder)
    with gateway.jvm(builder._options):
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError) as error:
            # In here: what such an error says is in the JVM, which ends with the block.
            raise ConfigError(
                f"Spark did not start: {short(error)}", hint="correct the [spark] or --spark options; headrace doctor"
            ) from error


def active() -> SparkSession | None:
    """The session of this process, also where another thread has made it: pyspark knows an active one per thread."""
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    stopped = found is None or found.sparkContext._jsc is None  # SparkContext.stop() leaves the session behind
    return None if stopped else found


def running() -> bool:
    """Whether this process has a session already."""
    return active() is not None


def alive(spark: SparkSession) -> bool:
    """Whether the JVM behind a session still answers."""
    try:
        cast("Any", spark.sparkContext._jvm).System.currentTimeMillis()
    except Exception:
        return False
    return True
