"""Errors out of the JVM that have a known cause: what Kafka refuses, and what a new machine lacks."""

from __future__ import annotations

import re

from headrace.errors import ConfigError
from headrace.jars import java, pyspark_install

_REASONS = (
    (
        re.compile(r"org\.apache\.kafka\.common\.errors\.(?:Topic|Group|Cluster)AuthorizationException: (.*)"),
        "grant this user READ on the topics",
    ),
    (
        re.compile(r"org\.apache\.kafka\.common\.errors\.(?:Sasl|Ssl)AuthenticationException: (.*)"),
        "correct the sasl.* and ssl.* options",
    ),
    (
        re.compile(r"org\.apache\.kafka\.common\.config\.ConfigException: (.*)"),
        "correct the options",
    ),
    (
        # How it begins says nothing; the last cause does.
        re.compile(
            r"Failed to construct kafka consumer(?:.*\nCaused by: [\w.]*(?:Kafka|Config)\w*Exception: ([^\n]*))",
            re.DOTALL,
        ),
        "correct the options; a file that they name must be on every executor",
    ),
)
_PASSES = "No resolvable bootstrap urls"


_FETCH = "headrace jars fetch, then use headrace's session or hr.configure(builder)"
_ABSENT = f"the Kafka connector is not loaded: {_FETCH}"
_SCALA = f"a jar is not built for Scala {pyspark_install.SCALA}, which this Spark has; to see which: headrace doctor"
_PARTS = "the connector is loaded without all it needs; load every jar of: headrace jars path"
_TWICE = "two versions of kafka-clients are loaded; to see which: headrace doctor"
# The first that fits is the most exact: a lost Scala class often names a Kafka class further down.
_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"UnsupportedClassVersionError|compiled by a more recent version of the Java",
        f"Java is too old: {java.INSTALL}",
    ),
    (r"NoSuchMethodError.*\bscala[./]|(?:NoClassDefFoundError|ClassNotFoundException): scala[./]", _SCALA),
    (r"(?i)failed to find (?:the )?data source:? `?kafka", _ABSENT),
    (
        r"(?:NoClassDefFoundError|ClassNotFoundException): org[./]apache[./](?:kafka|commons[./]pool2)[./]",
        _PARTS,
    ),
    (r"NoSuch(?:Method|Field)Error.*org[./]apache[./]kafka", _TWICE),
    (r"AVRO_NOT_LOADED", f"Spark's jar for Avro is not loaded: {_FETCH}"),
    (
        r"KafkaSourceRDD|KafkaOffsetRange|KafkaRecordToRowConverter|'JavaPackage' object is not callable",
        _ABSENT,
    ),
    (r"JAVA_GATEWAY_EXITED|Java gateway process exited", "Java did not start; to see why: headrace doctor"),
)


def refused(error: Exception) -> ConfigError | None:
    """The consumers' own words as an error that ends a run; None for any other error."""
    text = str(error)
    for pattern, cure in _REASONS:
        if (found := pattern.search(text)) and _PASSES not in found[1]:
            return ConfigError(f"Kafka refuses the consumers of the executors: {found[1].strip()}", hint=cure)
    return None


def explain(error_text: str) -> str | None:
    """What to do about a failure of Spark that is usual on a new machine; None for any other."""
    return next((hint for pattern, hint in _KNOWN if re.search(pattern, error_text)), None)
