"""What the JVM knows of an error: the SQL states of its causes, and whether an expression raised it on a value.

pyspark gives a Python exception with a state only to some errors. Others, such as those of `parse_json` and `split`,
come as a Py4JJavaError, with what went wrong among the causes of "Job aborted due to stage failure".
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
"""What expressions call: the first class on the stack that is none of these has called it."""
_EXPRESSIONS = (
    *(f"org.apache.spark.sql.catalyst.{package}." for package in ("expressions", "util", "json", "csv", "xml")),
    "org.apache.spark.unsafe.types.",
)


def sql_states(error: PySparkException | Py4JJavaError) -> Iterator[tuple[str, str]]:
    """SQL state and error condition of `error` and its causes, where Spark gave them."""
    if isinstance(error, PySparkException):
        yield error.getSqlState() or "", error.getCondition() or ""
    for cause in _causes(error):
        if is_instance_of(SparkContext._gateway, cause, "org.apache.spark.SparkThrowable"):
            yield cause.getSqlState() or "", cause.getCondition() or ""


def raised_by_expression(error: PySparkException | Py4JJavaError) -> bool:
    """Whether an expression on a task raised it, and not the reader of the records, the sink or the JVM itself."""
    if isinstance(error, AnalysisException):
        return False
    return any(
        is_instance_of(SparkContext._gateway, cause, "java.lang.RuntimeException")
        and (_caller(cause) or "").startswith(_EXPRESSIONS)
        for cause in _causes(error)
    )


def _causes(error: PySparkException | Py4JJavaError) -> Iterator[Any]:
    """Of the Java exception behind `error`, itself first."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _caller(cause: Any) -> str | None:
    names = (frame.getClassName() for frame in cause.getStackTrace())
    return next((name for name in names if not name.startswith(_LIBRARIES)), None)
