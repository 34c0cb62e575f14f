"""Avro schemas, as the Avro library inside Spark understands them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from headrace.errors import ConfigError
from headrace.formats.base import literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def parsed(spark: SparkSession, text: str, named: Sequence[str] = ()) -> str:
    """A schema in one piece: `named` are the texts of those that it refers to, each before the ones that need it."""
    parser = _parser(spark)
    try:
        for one in named:
            parser.parse(one)
        return str(parser.parse(text).toString())
    except Py4JJavaError as error:
        raise ConfigError(f"this is no Avro schema: {_said(error)}: {text[:200]}") from error


def misfit(spark: SparkSession, reader: str, writer: str, *, any_name: bool) -> str | None:
    """Why records that are written by one schema cannot be read by the other; None if they can.

    `any_name`: records may have another name. Without, a record of another kind whose fields all have defaults would
    be read as a row of nothing but defaults.
    """
    jvm: Any = spark._jvm
    one, other = _parser(spark).parse(reader), _parser(spark).parse(writer)
    found = jvm.org.apache.avro.SchemaCompatibility.checkReaderWriterCompatibility(one, other).getResult()
    reasons = []
    for problem in found.getIncompatibilities():
        kind = str(problem.getType().toString())
        if kind == "NAME_MISMATCH" and any_name:
            continue
        reasons.append(f"{kind.lower().replace('_', ' ')} at {problem.getLocation()}: {problem.getMessage()}")
    return "; ".join(reasons[:3]) or None


def columns(spark: SparkSession, schema: str) -> Any:
    """The type that values of a schema have in Spark, as the JSON of a schema has it. ConfigError if they have none."""
    try:
        frame = spark.createDataFrame([], "value BINARY").selectExpr(
            f"from_avro(value, {literal(schema)}, map('mode', 'PERMISSIVE')) AS row"
        )
        return frame.schema["row"].dataType.jsonValue()
    except Exception as error:
        if "AVRO_NOT_LOADED" in str(error):
            raise ConfigError(
                "Spark's jar for Avro is not loaded",
                hint='spark-submit --jars "$(headrace jars path)", or hr.configure(builder)',
            ) from error
        if not isinstance(error, Py4JJavaError):
            raise
        raise ConfigError(
            f"Spark has no columns for this Avro schema: {_said(error)}",
            hint="give a reader's schema without that field: hr.Avro(schema, registry=…)",
        ) from error


def _parser(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    # A default that does not fit its type is not looked at, as Spark does it: many such schemas are in use.
    return jvm.org.apache.avro.Schema.Parser().setValidateDefaults(False)


def _said(error: Py4JJavaError) -> str:
    return " ".join(str(error.java_exception.getMessage()).split())[:300]
