"""Parses and compares Avro schemas with the Avro library of Spark."""

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


def parse_schema(spark: SparkSession, text: str, references: Sequence[str] = ()) -> str:
    """A schema with its references resolved. Each of `references` comes after those that it refers to itself."""
    parser = _parser(spark)
    try:
        for schema in (*references, text):
            refuse_deep(schema)
        for schema in references:
            parser.parse(schema)
        resolved = str(parser.parse(text).toString())
        refuse_deep(resolved)
        refuse_large(resolved)
        return resolved
    except Py4JJavaError as error:
        raise ConfigError(f"not a valid Avro schema: {_java_message(error)}: {text[:200]}") from error


def incompatibility(spark: SparkSession, reader: str, writer: str, *, any_name: bool) -> str | None:
    """Why the reader schema cannot read records of the writer schema; None if it can.

    `any_name`: the record names may differ. Otherwise an unrelated record would be read as a row of defaults if all
    fields have one.
    """
    jvm: Any = spark._jvm
    reader_schema, writer_schema = _parser(spark).parse(reader), _parser(spark).parse(writer)
    compare = jvm.org.apache.avro.SchemaCompatibility.checkReaderWriterCompatibility
    result = compare(reader_schema, writer_schema).getResult()
    reasons = []
    for problem in result.getIncompatibilities():
        kind = str(problem.getType().toString())
        if kind == "NAME_MISMATCH" and any_name:
            continue
        reasons.append(f"{kind.lower().replace('_', ' ')} at {problem.getLocation()}: {problem.getMessage()}")
    if not reasons:
        reasons += _logical_type_mismatches(reader_schema, writer_schema, "", set())
    return "; ".join(reasons[:3]) or None


def _logical_type_mismatches(reader: Any, writer: Any, path: str, compared: set[tuple[str, str]]) -> Iterator[str]:
    """Fields whose logical types differ, which Avro's own comparison ignores: to it a decimal is only bytes.

    `compared` are the pairs of record names that were compared already.
    """
    kind, written = _type(reader), _type(writer)
    if written == "UNION":
        for branch in writer.getTypes():
            yield from _logical_type_mismatches(reader, branch, path, compared)
    elif kind == "UNION":
        if (branch := _branch(reader, writer)) is not None:
            yield from _logical_type_mismatches(branch, writer, path, compared)
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
                yield from _logical_type_mismatches(field.schema(), found, f"{path}/{names[0]}", compared)
    elif kind == written == "ARRAY":
        yield from _logical_type_mismatches(reader.getElementType(), writer.getElementType(), path, compared)
    elif kind == written == "MAP":
        yield from _logical_type_mismatches(reader.getValueType(), writer.getValueType(), path, compared)
    else:
        read, written_type = _logical_type(reader), _logical_type(writer)
        # A schema without a logical type matches any.
        if read is not None and written_type is not None and not _is_readable_as(read, written_type):
            difference = f"{_format_type(written_type)} is written, {_format_type(read)} is read"
            yield f"another logical type at {path or '/'}: {difference}"


_WIDER = {
    "INT": ("LONG", "FLOAT", "DOUBLE"),
    "LONG": ("FLOAT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "STRING": ("BYTES",),
    "BYTES": ("STRING",),
}


def _branch(union: Any, writer: Any) -> Any:
    """The branch of a reader union that Avro uses for a written type."""
    written = _type(writer)
    same = [branch for branch in union.getTypes() if _type(branch) == written]
    named = [branch for branch in same if str(branch.getFullName()) == str(writer.getFullName())]
    wider = [branch for branch in union.getTypes() if _type(branch) in _WIDER.get(written, ())]
    return next(iter([*named, *same, *wider]), None)


def _logical_type(schema: Any) -> tuple[str, int, int] | None:
    """The logical type; of a decimal also its precision and scale."""
    name = schema.getProp("logicalType")
    if name != "decimal":
        return None if name is None else (str(name), 0, 0)
    return "decimal", int(schema.getObjectProp("precision") or 0), int(schema.getObjectProp("scale") or 0)


def _is_readable_as(read: tuple[str, int, int], written: tuple[str, int, int]) -> bool:
    return read[0] == written[0] and read[1] >= written[1] and read[2] == written[2]


def _format_type(logical_type: tuple[str, int, int]) -> str:
    name, precision, scale = logical_type
    return f"{name}({precision},{scale})" if name == "decimal" else name


def _type(schema: Any) -> str:
    return str(schema.getType().toString()).upper()


def spark_type(spark: SparkSession, schema: str) -> Any:
    """The Spark type of a schema's values, in Spark's JSON notation. ConfigError if there is none."""
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
            f"Spark has no type for this Avro schema: {_java_message(error)}",
            hint="give a reader schema without that field: hr.Avro(schema, registry=…)",
        ) from error


def _parser(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    # Like Spark, do not validate defaults: many schemas in use have one that does not match its type.
    return jvm.org.apache.avro.Schema.Parser().setValidateDefaults(False)


def _java_message(error: Py4JJavaError) -> str:
    return " ".join(str(error.java_exception.getMessage()).split())[:300]
