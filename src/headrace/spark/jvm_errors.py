"""Explains errors of the JVM with a known cure: settings that Kafka rejects, and an incomplete installation."""

from __future__ import annotations

import re

from headrace.core import error_markers as markers
from headrace.errors import ConfigError
from headrace.jars import java, pyspark_install

_KAFKA_CURES = (
    (markers.KAFKA_NOT_AUTHORIZED, "grant this user READ on the topics"),
    (markers.KAFKA_NOT_AUTHENTICATED, "correct the sasl.* and ssl.* options"),
    (markers.KAFKA_CONFIG, "correct the options"),
    (markers.KAFKA_CONSUMER_FAILED, "correct the options; a file that they name must be on every executor"),
)
_FETCH = "headrace jars fetch, then use headrace's session or hr.configure(builder)"
_NO_CONNECTOR = f"the Kafka connector is not loaded: {_FETCH}"
# The first match is the most exact: an error about a missing Scala class often names a Kafka class further down.
_HINTS = (
    (markers.OLD_JAVA, f"Java is too old: {java.INSTALL}"),
    (
        markers.OTHER_SCALA,
        f"a jar is not built for Scala {pyspark_install.SCALA}, which this Spark has; to see which: headrace doctor",
    ),
    (markers.NO_KAFKA_SOURCE, _NO_CONNECTOR),
    (
        markers.NO_KAFKA_CLIENTS,
        "the connector is loaded without all it needs; load every jar of: headrace jars path",
    ),
    (markers.TWO_KAFKA_CLIENTS, "two versions of kafka-clients are loaded; to see which: headrace doctor"),
    (markers.AVRO_NOT_LOADED, f"Spark's jar for Avro is not loaded: {_FETCH}"),
    (markers.NO_CONNECTOR, _NO_CONNECTOR),
    (markers.NO_JVM, "Java did not start; to see why: headrace doctor"),
)


def kafka_config_error(error: Exception) -> ConfigError | None:
    """A ConfigError if Kafka's consumers refuse their settings, credentials or rights; None for any other error."""
    for pattern, cure in _KAFKA_CURES:
        if (match := pattern.search(str(error))) and markers.KAFKA_UNRESOLVED not in match[1]:
            return ConfigError(f"Kafka refuses the consumers of the executors: {match[1].strip()}", hint=cure)
    return None


def avro_missing() -> ConfigError:
    return ConfigError(
        "Spark's jar for Avro is not loaded",
        hint='spark-submit --jars "$(headrace jars path)", or hr.configure(builder)',
    )


def explain(error_text: str) -> str | None:
    """The cure for an error of Spark that is common on a new machine; None for any other error."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, error_text)), None)
