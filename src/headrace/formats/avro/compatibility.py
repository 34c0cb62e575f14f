"""Avro schemas, as the Avro library inside Spark understands them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from headrace.core.error_markers import is_avro_missing
from headrace.errors import ConfigError
from headrace.formats.avro.schema import refuse_deep, refuse_large
from headrace.spark.jvm_errors import avro_missing
from headrace.spark.sql import literal, verbatim

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession


def parsed(spark: SparkSession, text: str, named: Sequence[str] = ()) -> str:
    """A schema in one piece: `named` are the texts of those that it refers to, each before the ones that need it."""
    parser = _parser(spark)
    try:
        for one in (*named, text):
            refuse_deep(one)
        for one in named:
            parser.parse(one)
        whole = str(parser.parse(text).toString())
        refuse_deep(whole)
        refuse_large(whole)
        return whole
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
    if not reasons:
        reasons += _other_meanings(one, other, "", set())
    return "; ".join(reasons[:3]) or None


def _other_meanings(reader: Any, writer: Any, path: str, compared: set[tuple[str, str]]) -> Iterator[str]:
    """Where the same bytes mean something else to a reader: to Avro's own comparison a decimal is just bytes.

    `compared` are the records, by name, that need no second look wherever they are used.
    """
    kind, written = _type(reader), _type(writer)
    if written == "UNION":
        for branch in writer.getTypes():
            yield from _other_meanings(reader, branch, path, compared)
    elif kind == "UNION":
        if (branch := _branch(reader, writer)) is not None:
            yield from _other_meanings(branch, writer, path, compared)
    elif kind == written == "RECORD":
        pair = str(reader.getFullName()), str(writer.getFullName())
        if pair in compared:
            return
        compared.add(pair)
        fields = {str(field.name()): field.schema() for field in writer.getFields()}
        for field in reader.getFields():
            names = [str(field.name()), *map(str, field.aliases())]
            found = next((fields[name] for name in names if name in fields), None)
            if found is not None:
                yield from _other_meanings(field.schema(), found, f"{path}/{names[0]}", compared)
    elif kind == written == "ARRAY":
        yield from _other_meanings(reader.getElementType(), writer.getElementType(), path, compared)
    elif kind == written == "MAP":
        yield from _other_meanings(reader.getValueType(), writer.getValueType(), path, compared)
    else:
        meant, was = _meaning(reader), _meaning(writer)
        # One that says nothing is taken at the word of the other.
        if meant is not None and was is not None and not _fits(meant, was):
            yield f"another logical type at {path or '/'}: {_shown(was)} is written, {_shown(meant)} is read"


_WIDER = {
    "INT": ("LONG", "FLOAT", "DOUBLE"),
    "LONG": ("FLOAT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "STRING": ("BYTES",),
    "BYTES": ("STRING",),
}


def _branch(union: Any, writer: Any) -> Any:
    """The branch that a value is read by, as Avro chooses it."""
    written = _type(writer)
    same = [one for one in union.getTypes() if _type(one) == written]
    named = [one for one in same if str(one.getFullName()) == str(writer.getFullName())]
    wider = [one for one in union.getTypes() if _type(one) in _WIDER.get(written, ())]
    return next(iter([*named, *same, *wider]), None)


def _meaning(schema: Any) -> tuple[str, int, int] | None:
    """The logical type; of a decimal also its precision and scale."""
    name = schema.getProp("logicalType")
    if name != "decimal":
        return None if name is None else (str(name), 0, 0)
    return "decimal", int(schema.getObjectProp("precision") or 0), int(schema.getObjectProp("scale") or 0)


def _fits(meant: tuple[str, int, int], was: tuple[str, int, int]) -> bool:
    return meant[0] == was[0] and meant[1] >= was[1] and meant[2] == was[2]


def _shown(meaning: tuple[str, int, int]) -> str:
    name, precision, scale = meaning
    return f"{name}({precision},{scale})" if name == "decimal" else name


def _type(schema: Any) -> str:
    return str(schema.getType().toString()).upper()


def columns(spark: SparkSession, schema: str) -> Any:
    """The type that values of a schema have in Spark, as the JSON of a schema has it. ConfigError if they have none."""
    try:
        with verbatim(spark):
            frame = spark.createDataFrame([], "value BINARY").selectExpr(
                f"from_avro(value, {literal(schema)}, map('mode', 'PERMISSIVE')) AS row"
            )
        return frame.schema["row"].dataType.jsonValue()
    except Exception as error:
        if is_avro_missing(error):
            raise avro_missing() from error
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
