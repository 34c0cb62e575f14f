"""Decodes the keys or the values of one source, and checks that their schema can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

from headrace.core.format import HIDDEN
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.spark.sql import literal, quoted, verbatim
from headrace.support.tracebacks import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from headrace.core.format import Decoding, Format, Part

RAW_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_DDL = 'expected a Spark DDL string: "user STRING, amount DECIMAL(10,2), at TIMESTAMP"'


@dataclass(frozen=True, slots=True)
class FieldDecoder:
    """How the keys or the values of a run are decoded, and the names of their columns."""

    part: Part
    decoding: Decoding
    names: list[str]

    @property
    def decoded_column(self) -> str:
        """The column that holds the decoded struct until its fields are selected."""
        return f"decoded_{self.part}"

    def decode_column(self, *, strict: bool) -> str:
        """SQL that decodes. `strict`: it may fail at a bad record."""
        decoded = (self.decoding.strict_decode_expr(self.part) if strict else None) or self.decoding.decode_expr(
            self.part
        )
        # A non-deterministic expression stops predicate pushdown: a filter of the transform that is pushed below the
        # decoding would parse every record a second time.
        return f"if(spark_partition_id() < 0, NULL, {decoded}) AS {self.decoded_column}"

    def prevalidate_expr(self) -> str | None:
        return self._labelled(self.decoding.prevalidate_expr(self.part))

    def error_expr(self) -> str | None:
        return self._labelled(self.decoding.error_expr(self.part, self.decoded_column))

    def _labelled(self, error: str | None) -> str | None:
        return error if error is None or self.part == "value" else f"concat('key: ', {error})"

    @property
    def is_absent_expr(self) -> str:
        """SQL: whether the key or value is absent."""
        return f"{HIDDEN}tombstone" if self.part == "value" else "key IS NULL"

    def column_exprs(self) -> dict[str, str]:
        """SQL of each column: several for a value, one for a key."""
        row = self.decoding.row_expr(self.decoded_column)
        fields = {name: f"{row}.{quoted(name)}" for name in self.names}
        if self.part == "value":
            return fields
        if self.decoding.single:
            return {"key": fields["value"]}
        named = ", ".join(f"{literal(name)}, {field}" for name, field in fields.items())
        return {"key": f"if(key IS NULL, NULL, named_struct({named}))"}


def open_decoder(spark: SparkSession, fmt: Format, part: Part, topics: Sequence[str]) -> FieldDecoder:
    if (ddl := fmt.ddl()) is not None:
        _check_ddl(fmt, ddl)
    decoding = fmt.decoding(spark, part, topics)
    try:
        with verbatim(spark):
            empty = spark.createDataFrame([], RAW_SCHEMA).selectExpr(f"{decoding.decode_expr(part)} AS decoded")
            row = empty.selectExpr(f"{decoding.row_expr('decoded')} AS row").schema["row"].dataType
    except (AnalysisException, Py4JJavaError) as error:
        schema = "" if ddl is None else f"{ddl!r}: "
        raise ConfigError(
            f"{type(fmt).__name__}: Spark cannot use the schema: {schema}{_cause(error)}",
            hint=_DDL if ddl is not None else "change the schema, or read hr.Bytes() and decode in the transform",
        ) from error
    assert isinstance(row, StructType)
    names = [name for name in row.fieldNames() if not name.startswith(HIDDEN)]
    if part == "value":
        _check_names(names, fmt)
    return FieldDecoder(part, decoding, names)


def _check_ddl(fmt: Format, ddl: str) -> None:
    try:
        parsed = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(
            f"{type(fmt).__name__}: the schema does not parse: {ddl!r}: {_first_line(error)}", hint=_DDL
        ) from error
    if not isinstance(parsed, StructType):
        raise ConfigError(
            f"{type(fmt).__name__}: expected columns, got a type: {ddl!r}",
            hint='"user STRING, amount DECIMAL(10,2), at TIMESTAMP"',
        )
    _check_names(parsed.fieldNames(), fmt)


def _check_names(names: list[str], fmt: Format) -> None:
    reserved = {METADATA, "bad"} if fmt.on_error == "keep" else {METADATA}
    lowered = [name.lower() for name in names]
    if clash := sorted(name for name in names if name.lower() in reserved or name.lower().startswith(HIDDEN)):
        raise ConfigError(f"the column name {clash[0]} is reserved by Headrace", hint="rename the field")
    if twice := sorted(name for name in names if lowered.count(name.lower()) > 1):
        raise ConfigError(f"the schema has the column {twice[0]} twice", hint="rename or remove one of them")


def _cause(error: AnalysisException | Py4JJavaError) -> str:
    if isinstance(error, AnalysisException):
        return short(error)
    return " ".join(str(error.java_exception.getMessage()).split())[:300]


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
