"""Reads the causes of an error in the JVM: their SQL states, and whether an expression raised one on a value.

pyspark converts only some errors to Python exceptions with an SQL state. Others, such as those of `parse_json` and
`split`, arrive as a Py4JJavaError, with the reason among the causes of "Job aborted due to stage failure".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIBRARIES = (
    *("java.", "javax.", "jdk.", "sun.", "com.sun.", "scala.", "com.fasterxml."),
    *("org.apache.spark.sql.errors.", "org.apache.spark.types.variant."),
)
"""Libraries that expressions call: the first class on the stack outside of them is the caller."""
_EXPRESSIONS = (
    *(f"org.apache.spark.sql.catalyst.{package}." for package in ("expressions", "util", "json", "csv", "xml")),
    "org.apache.spark.unsafe.types.",
)


def sql_states(error: PySparkException | Py4JJavaError) -> Iterator[tuple[str, str]]:
    """SQL state and error condition of `error` and of each of its causes that has them."""
    if isinstance(error, PySparkException):
        yield error.getSqlState() or "", error.getCondition() or ""
    for cause in _causes(error):
        if is_instance_of(SparkContext._gateway, cause, "org.apache.spark.SparkThrowable"):
            yield cause.getSqlState() or "", cause.getCondition() or ""


def raised_by_expression(error: PySparkException | Py4JJavaError) -> bool:
    """Whether an expression in a task raised it, not the Kafka reader, the sink or the JVM itself."""
    if isinstance(error, AnalysisException):
        return False
    return any(
        is_instance_of(SparkContext._gateway, cause, "java.lang.RuntimeException")
        and (_caller(cause) or "").startswith(_EXPRESSIONS)
        for cause in _causes(error)
    )


def _causes(error: PySparkException | Py4JJavaError) -> Iterator[Any]:
    """The Java exception of `error` and its causes."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _caller(cause: Any) -> str | None:
    names = (frame.getClassName() for frame in cause.getStackTrace())
    return next((name for name in names if not name.startswith(_LIBRARIES)), None)
