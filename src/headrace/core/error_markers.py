"""Texts that identify errors raised inside Spark: in SQL expressions, Python workers and the JVM.

Such an error reaches the driver only as text, inside the message of another exception. The first group are markers that
Headrace itself puts into a message, with raise_error(); the others are names that Spark, Avro, Kafka and Java use.
"""

from __future__ import annotations

import json
import re
from typing import Any

BAD_RECORD = "headrace.BadRecord somewhere in the batch"
"""A record is bad. The message does not say which one: the driver reads the batch again to find it."""
UNKNOWN_SCHEMA = "headrace.UnknownSchema:"
"""A record has a schema id that was unknown when the expressions were built. JSON with the id follows."""
UNENCODABLE = "headrace.Unencodable: "
"""A format has no bytes for a row. The reason follows."""

MALFORMED_RECORD = "MALFORMED_RECORD_IN_PARSING"
"""Spark's condition for a text that does not parse in the mode FAILFAST."""
AVRO_NOT_LOADED = "AVRO_NOT_LOADED"
"""Spark's condition if the jar for Avro is not on the class path."""
KAFKA_CONDITION = "KAFKA"
"""The prefix of Spark's conditions for errors of its Kafka connector."""

VALUE_STATES = ("22", "P0")
"""Prefixes of SQL states that the same value always raises: data exceptions, and raise_error()."""
FUNCTION_STATES = ("38", "39")
"""Prefixes of SQL states of errors in user functions. Such a function may also call a server that is down."""

AVRO_NULL = re.compile(r"AVRO_CANNOT_WRITE_NULL_FIELD\] (.+)")
AVRO_SCHEMA_MISMATCH = re.compile(r"(?:IncompatibleSchema|SchemaParse|AvroType|AvroRuntime)Exception: (.+)")
_UNENCODABLE = (
    AVRO_NULL,
    re.compile(r"NullPointerException: (null value for \(non-nullable\) .+)"),
    re.compile(r"IncompatibleSchemaException: (Cannot convert SQL .+ because .+ cannot be written .+)"),
    re.compile(rf"{UNENCODABLE}(.+)"),
)

_KAFKA = r"org\.apache\.kafka\.common\."
KAFKA_NOT_AUTHORIZED = re.compile(_KAFKA + r"errors\.(?:Topic|Group|Cluster)AuthorizationException: (.*)")
KAFKA_NOT_AUTHENTICATED = re.compile(_KAFKA + r"errors\.(?:Sasl|Ssl)AuthenticationException: (.*)")
KAFKA_CONFIG = re.compile(_KAFKA + r"config\.ConfigException: (.*)")
KAFKA_CONSUMER_FAILED = re.compile(
    # The first message is generic; the last cause has the reason.
    r"Failed to construct kafka consumer(?:.*\nCaused by: [\w.]*(?:Kafka|Config)\w*Exception: ([^\n]*))",
    re.DOTALL,
)
KAFKA_UNRESOLVED = "No resolvable bootstrap urls"
"""The exception above that may be temporary: a name server that does not answer."""

OLD_JAVA = r"UnsupportedClassVersionError|compiled by a more recent version of the Java"
OTHER_SCALA = r"NoSuchMethodError.*\bscala[./]|(?:NoClassDefFoundError|ClassNotFoundException): scala[./]"
NO_KAFKA_SOURCE = r"(?i)failed to find (?:the )?data source:? `?kafka"
NO_KAFKA_CLIENTS = r"(?:NoClassDefFoundError|ClassNotFoundException): org[./]apache[./](?:kafka|commons[./]pool2)[./]"
TWO_KAFKA_CLIENTS = r"NoSuch(?:Method|Field)Error.*org[./]apache[./]kafka"
NO_CONNECTOR = r"KafkaSourceRDD|KafkaOffsetRange|KafkaRecordToRowConverter|'JavaPackage' object is not callable"
NO_JVM = r"JAVA_GATEWAY_EXITED|Java gateway process exited"

_DERBY_LOCKED = ("Another instance of Derby", "XSDB6")
_NO_CLASS, _NO_JDBC_DRIVER = "ClassNotFoundException", "No suitable driver"


def is_bad_record_error(error: BaseException) -> bool:
    """Whether `error` says that a record is bad, but not which one."""
    text = str(error)
    return BAD_RECORD in text or MALFORMED_RECORD in text


def unknown_schema(error: BaseException) -> dict[str, Any] | None:
    """The schema id that was unknown when a batch failed with `error`, and where: see `raise_unknown_schema_expr`."""
    _, marker, payload = str(error).partition(UNKNOWN_SCHEMA)
    if not marker:
        return None
    found, _ = json.JSONDecoder().raw_decode(payload)
    return dict(found)


def unencodable_reason(error: BaseException) -> str | None:
    """The reason why a row cannot be encoded; None for any other error."""
    matches = (pattern.search(str(error)) for pattern in _UNENCODABLE)
    return next((match[1].strip() for match in matches if match), None)


def is_avro_missing(error: BaseException) -> bool:
    """Whether Spark's jar for Avro is not loaded."""
    return AVRO_NOT_LOADED in str(error)


def is_raised_on_worker(error: BaseException, kind: type[Exception]) -> bool:
    """Whether a Python worker raised `kind`: the traceback in Spark's message has its full name."""
    return f"{kind.__module__}.{kind.__name__}" in str(error)


def is_class_missing(message: str) -> bool:
    """Whether a Java exception says that a class, such as a file system or a driver, is not on the class path."""
    return _NO_CLASS in message


def is_jdbc_driver_missing(message: str) -> bool:
    return _NO_JDBC_DRIVER in message or is_class_missing(message)


def is_metastore_locked(message: str) -> bool:
    """Whether another process has Derby, the metastore without a server, open."""
    return any(text in message for text in _DERBY_LOCKED)


def is_database_missing(message: str) -> bool:
    """Whether Spark or the metastore does not find a database."""
    return "SCHEMA_NOT_FOUND" in message or ("Database" in message and "not found" in message)
