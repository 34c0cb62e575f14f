"""The Spark session: our defaults, the user's options over them, and the connector's jars beside theirs."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.errors import ConfigError
from headrace.spark import jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")
# Printed before, or around, any logging configuration.
_NOISE = (
    "WARNING: Using incubator modules",
    "Setting default log level to",
    "To adjust logging level use",
    "Setting Spark log level to",
)


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
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def at_most_once() -> dict[str, str]:
    """What Spark must not do by itself when a row may be written once at most: repeat a task."""
    return {
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
    }


def refuse_task_retries(spark: SparkSession) -> None:
    """Raise ConfigError if a session made by somebody else would repeat tasks under at-most-once."""
    conf = spark.sparkContext.getConf()
    local = (conf.get("spark.master", "") or "").startswith("local")
    speculation = conf.get("spark.speculation", "false") == "true"
    retries = not local and conf.get("spark.task.maxFailures", "4") != "1"
    if speculation or retries:
        raise ConfigError(
            "at-most-once needs a Spark session that never repeats a task; this one may",
            hint="start it with " + " ".join(f"--conf {name}={value}" for name, value in at_most_once().items()),
        )


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the connectors for Kafka and Avro to a session builder of your own; jars it already has stay."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options: dict[str, Any] = builder._options
    present = [jar for jar in str(options.get("spark.jars", "")).split(",") if jar]
    names = {Path(jar).name for jar in present}
    ours = [str(jar) for jar in jars.connector() if jar.name not in names]
    for name, value in {**_POOL, **_JAVA}.items():
        if name not in options:
            builder = builder.config(name, value)
    return builder.config("spark.jars", ",".join(present + ours))


def create(options: Mapping[str, str], progress: Callable[[str], None] = lambda line: None) -> SparkSession:
    """A session with `options` over our defaults, or the one that is already active."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    if active := SparkSession.getActiveSession():
        return active
    jars.connector(progress)  # before Spark starts, so that a download is seen and not a silent wait
    builder = SparkSession.builder
    builder._options = {}  # the class keeps options of earlier sessions in this process
    merged = {**defaults(), **options}
    log_config = f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}"
    java_options = merged.get("spark.driver.extraJavaOptions", "")
    if "log4j" not in java_options:
        merged["spark.driver.extraJavaOptions"] = f"{log_config} {java_options}".strip()
    for name, value in merged.items():
        builder = builder.config(name, str(value))
    # pyspark writes the JVM's stack trace of every refused query to stderr, before the error is told.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    try:
        with _quiet_start():
            return configure(builder).getOrCreate()
    except PySparkException as error:
        raise ConfigError(f"Spark did not start: {error}", hint="headrace doctor") from error


def alive(spark: SparkSession) -> bool:
    """Whether the JVM behind a session still answers."""
    try:
        cast("Any", spark.sparkContext._jvm).System.currentTimeMillis()
    except Exception:
        return False
    return True


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Pass the JVM's stderr on without its noise. The JVM inherits the pipe and keeps it for its life."""
    reading, writing = os.pipe()
    terminal = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)

    def forward() -> None:
        with os.fdopen(reading, errors="replace") as lines, os.fdopen(terminal, "w") as out:
            for line in lines:
                if not line.startswith(_NOISE):
                    out.write(line)
                    out.flush()

    after = os.dup(terminal)
    threading.Thread(target=forward, name="headrace-jvm-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(after, 2)
        os.close(after)
