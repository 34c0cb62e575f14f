"""Registers Python functions that decode or encode records on the executors, one Arrow batch at a time."""

from __future__ import annotations

import struct
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType, TimestampType

from headrace.core.format import HIDDEN, Decoding
from headrace.errors import ConfigError
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    Batch = Callable[[Any], tuple[Any, Any]]
    """From the values of an Arrow batch to rows (a StructArray) and errors (texts; NULL for a valid record)."""

_ERROR = f"{HIDDEN}error"


class ArrowDecoding(Decoding):
    """Decodes with a function that is registered in Spark as `name`."""

    def __init__(self, spark: SparkSession, name: str, decode: Batch, row: StructType) -> None:
        self._name = name
        kind = StructType([StructField("value", row), StructField(_ERROR, StringType())])

        def decode_with_errors(values: Any) -> Any:
            import pyarrow as pa

            rows, errors = decode(values)
            return pa.StructArray.from_arrays([rows, errors], names=["value", _ERROR])

        _register(spark, name, decode_with_errors, kind)

    def decode_expr(self, source: str) -> str:
        return f"{self._name}({source})"

    def error_expr(self, source: str, decoded: str) -> str | None:
        return f"{decoded}.{_ERROR}"

    def row_expr(self, decoded: str) -> str:
        return f"{decoded}.value"


def register_encoder(name: str, encode: Callable[[Any], Any], kind: DataType | str = "binary") -> None:
    """Register a function from rows to bytes, or to another type, in the active session."""
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None:
        raise ConfigError("encoding needs an active Spark session", hint="spark = hr.session()")
    _register(spark, name, encode, kind)


def by_batch(decode: Callable[[Any], Any], row: StructType, zone: str) -> Batch:
    """Wrap a function from all values of a batch to columns: a StructArray, a Table, or a dict of arrays.

    Times without a zone are in `zone`.
    """
    names, kinds = _arrow(row)

    def call(values: Any) -> tuple[Any, Any]:
        import pyarrow as pa
        from pyarrow import compute

        found = _as_arrays(decode(values))
        errors = found.pop("error", None) if "error" not in names else None
        if unknown := sorted(set(found) ^ set(names)):
            raise TypeError(
                f"expected the columns {', '.join(names)} from the function, got {', '.join(found)}: {unknown[0]}"
            )
        arrays = [_with_zone(found[name], kind, zone).cast(kind) for name, kind in zip(names, kinds, strict=True)]
        for array in arrays:
            if len(array) != len(values):
                raise TypeError(f"expected {counted(len(values), 'row')} from the function, got {len(array):,}")
        rows = pa.StructArray.from_arrays(arrays, names=names, mask=values.is_null())
        if errors is None:
            return rows, pa.nulls(len(values), pa.string())
        return rows, compute.if_else(values.is_null(), pa.scalar(None, pa.string()), errors.cast(pa.string()))

    return call


def by_record(decode: Callable[[bytes], Any], row: StructType, zone: str) -> Batch:
    """Wrap a function from one value to a dict or a tuple. A ValueError or struct.error makes the record bad.

    Times without a zone are in `zone`.
    """
    names, kinds = _arrow(row)
    set_zone = _zone_setter(row, zone)

    def call(values: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        rows: list[dict[str, Any] | None] = []
        errors: list[str | None] = []
        for value in values.to_pylist():
            found, error = None, None
            if value is not None:
                try:
                    found = _as_dict(decode(value), names)
                    if set_zone is not None and found is not None:
                        found = set_zone(found)
                except (ValueError, struct.error) as failure:
                    error = str(failure) or type(failure).__name__
            rows.append(found)
            errors.append(error)
        kind = pa.struct(list(zip(names, kinds, strict=True)))
        try:
            return pa.array(rows, kind), pa.array(errors, pa.string())
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            checked = [_type_mismatch(found, names, kinds) for found in rows]
            good = [found if mismatch is None else None for found, mismatch in zip(rows, checked, strict=True)]
            reasons = [error or mismatch for error, mismatch in zip(errors, checked, strict=True)]
            return pa.array(good, kind), pa.array(reasons, pa.string())

    return call


def zone(spark: SparkSession) -> str:
    """The time zone of the session; UTC if Python does not know it."""
    name = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    return name if name in available_timezones() else "UTC"


def _register(spark: SparkSession, name: str, call: Callable[[Any], Any], kind: DataType | str) -> None:
    import pyarrow as pa

    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError as error:
        raise ConfigError(
            "functions on Arrow batches need Spark 4.1 or newer", hint="pip install 'pyspark>=4.1'"
        ) from error

    def udf(values: Any) -> Any:
        return call(values)

    # Spark reads the signature from annotations; written as hints they would be strings, which it cannot resolve.
    udf.__annotations__ = {"values": pa.Array, "return": pa.Array}
    spark.udf.register(name, arrow_udf(udf, kind))  # type: ignore[call-overload]


def _arrow(row: StructType) -> tuple[list[str], list[Any]]:
    return row.fieldNames(), [to_arrow_type(field.dataType, timezone="UTC") for field in row.fields]


def _with_zone(array: Any, kind: Any, zone: str) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    naive = pa.types.is_timestamp(array.type) and array.type.tz is None
    if not naive or not pa.types.is_timestamp(kind) or kind.tz is None or zone == "UTC":
        return array
    return compute.assume_timezone(array, zone, ambiguous="earliest", nonexistent="latest")


def _zone_setter(kind: DataType, zone: str) -> Callable[[Any], Any] | None:
    """A function that adds the session's time zone to naive times in values of a type; None if it has no times."""
    if zone == "UTC":  # like Arrow
        return None
    match kind:
        case TimestampType():
            at = ZoneInfo(zone)
            return lambda value: value.replace(tzinfo=at) if isinstance(value, datetime) and not value.tzinfo else value
        case StructType():
            found = {field.name: _zone_setter(field.dataType, zone) for field in kind.fields}
            inner = {name: call for name, call in found.items() if call is not None}
            if not inner:
                return None
            return lambda value: (
                {name: inner[name](item) if name in inner else item for name, item in value.items()}
                if isinstance(value, dict)
                else value
            )
        case ArrayType():
            of = _zone_setter(kind.elementType, zone)
            return None if of is None else lambda value: None if value is None else [of(item) for item in value]
    return None


def _as_arrays(found: Any) -> dict[str, Any]:
    import pyarrow as pa

    if isinstance(found, pa.StructArray):
        return dict(zip((field.name for field in found.type), found.flatten(), strict=True))
    if isinstance(found, pa.Table):
        found = found.combine_chunks()
        return {name: _as_array(found.column(name)) for name in found.column_names}
    if isinstance(found, pa.RecordBatch):
        return dict(zip(found.schema.names, found.columns, strict=True))
    if isinstance(found, dict):
        return {name: _as_array(array) for name, array in found.items()}
    raise TypeError(
        f"expected a StructArray, a Table or a dict of arrays from the function, got {type(found).__name__}"
    )


def _as_array(array: Any) -> Any:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        return array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    return array if isinstance(array, pa.Array) else pa.array(array)


def _as_dict(found: Any, names: list[str]) -> dict[str, Any] | None:
    if found is None or isinstance(found, dict):
        return found
    if isinstance(found, tuple | list) and len(found) == len(names):
        return dict(zip(names, found, strict=True))
    raise TypeError(f"expected a dict or a tuple of {', '.join(names)} from the function, got {found!r}")


def _type_mismatch(found: dict[str, Any] | None, names: list[str], kinds: list[Any]) -> str | None:
    """The first field of a record that does not match its type."""
    import pyarrow as pa

    for name, kind in zip(names, kinds, strict=True):
        value = None if found is None else found.get(name)
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return f"{name} does not match its type: {error}"
    return None
