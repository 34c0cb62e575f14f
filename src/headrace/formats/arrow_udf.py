"""Functions of Python that decode and encode records, on the executors, an Arrow batch at a time."""

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
    """From the values of an Arrow batch to rows (a StructArray), and why records are bad (texts; NULL: it is not)."""

_ERROR = f"{HIDDEN}error"


class ArrowDecoding(Decoding):
    """Decodes by a function that Spark knows under `name`."""

    def __init__(self, spark: SparkSession, name: str, decode: Batch, row: StructType) -> None:
        self._name = name
        kind = StructType([StructField("value", row), StructField(_ERROR, StringType())])

        def both(values: Any) -> Any:
            import pyarrow as pa

            rows, errors = decode(values)
            return pa.StructArray.from_arrays([rows, errors], names=["value", _ERROR])

        _register(spark, name, both, kind)

    def decode_expr(self, source: str) -> str:
        return f"{self._name}({source})"

    def error_expr(self, source: str, decoded: str) -> str | None:
        return f"{decoded}.{_ERROR}"

    def row_expr(self, decoded: str) -> str:
        return f"{decoded}.value"


def encoder(name: str, encode: Callable[[Any], Any], kind: DataType | str = "binary") -> None:
    """Let the active session know a function from rows to bytes, or to another type."""
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None:
        raise ConfigError("there is no Spark session to encode in", hint="headrace.spark.session.create({})")
    _register(spark, name, encode, kind)


def by_batch(decode: Callable[[Any], Any], row: StructType, zone: str) -> Batch:
    """A function of all values of a batch, which gives columns: a StructArray, a Table, or a dict of arrays.

    Times without a zone are in `zone`.
    """
    names, kinds = _arrow(row)

    def call(values: Any) -> tuple[Any, Any]:
        import pyarrow as pa
        from pyarrow import compute

        found = _columns(decode(values))
        errors = found.pop("error", None) if "error" not in names else None
        if unknown := sorted(set(found) ^ set(names)):
            raise TypeError(f"the columns are {', '.join(names)}; the function gave {', '.join(found)}: {unknown[0]}")
        arrays = [_zoned(found[name], kind, zone).cast(kind) for name, kind in zip(names, kinds, strict=True)]
        for array in arrays:
            if len(array) != len(values):
                raise TypeError(f"the function gave {counted(len(array), 'row')} for {counted(len(values), 'record')}")
        rows = pa.StructArray.from_arrays(arrays, names=names, mask=values.is_null())
        if errors is None:
            return rows, pa.nulls(len(values), pa.string())
        return rows, compute.if_else(values.is_null(), pa.scalar(None, pa.string()), errors.cast(pa.string()))

    return call


def by_record(decode: Callable[[bytes], Any], row: StructType, zone: str) -> Batch:
    """A function of one value, which gives a dict or a tuple. ValueError, and struct.error: the record is bad.

    Times without a zone are in `zone`.
    """
    names, kinds = _arrow(row)
    local = _local(row, zone)

    def call(values: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        rows: list[dict[str, Any] | None] = []
        errors: list[str | None] = []
        for value in values.to_pylist():
            found, error = None, None
            if value is not None:
                try:
                    found = _named(decode(value), names)
                    if local is not None and found is not None:
                        found = local(found)
                except (ValueError, struct.error) as failure:
                    error = str(failure) or type(failure).__name__
            rows.append(found)
            errors.append(error)
        kind = pa.struct(list(zip(names, kinds, strict=True)))
        try:
            return pa.array(rows, kind), pa.array(errors, pa.string())
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            checked = [_unfit(found, names, kinds) for found in rows]
            good = [found if unfit is None else None for found, unfit in zip(rows, checked, strict=True)]
            said = [error or unfit for error, unfit in zip(errors, checked, strict=True)]
            return pa.array(good, kind), pa.array(said, pa.string())

    return call


def zone(spark: SparkSession) -> str:
    """Of the session, as Python and Arrow know it; UTC if they do not."""
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

    def hinted(values: Any) -> Any:
        return call(values)

    # By these Spark tells what a function takes; written as hints they would be texts, which it cannot resolve.
    hinted.__annotations__ = {"values": pa.Array, "return": pa.Array}
    spark.udf.register(name, arrow_udf(hinted, kind))  # type: ignore[call-overload]


def _arrow(row: StructType) -> tuple[list[str], list[Any]]:
    return row.fieldNames(), [to_arrow_type(field.dataType, timezone="UTC") for field in row.fields]


def _zoned(array: Any, kind: Any, zone: str) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    naive = pa.types.is_timestamp(array.type) and array.type.tz is None
    if not naive or not pa.types.is_timestamp(kind) or kind.tz is None or zone == "UTC":
        return array
    return compute.assume_timezone(array, zone, ambiguous="earliest", nonexistent="latest")


def _local(kind: DataType, zone: str) -> Callable[[Any], Any] | None:
    """Gives the times in a value of this type that have no zone the one of the session; None if there are none."""
    if zone == "UTC":  # so Arrow takes them
        return None
    match kind:
        case TimestampType():
            at = ZoneInfo(zone)
            return lambda value: value.replace(tzinfo=at) if isinstance(value, datetime) and not value.tzinfo else value
        case StructType():
            found = {field.name: _local(field.dataType, zone) for field in kind.fields}
            inner = {name: call for name, call in found.items() if call is not None}
            if not inner:
                return None
            return lambda value: (
                {name: inner[name](one) if name in inner else one for name, one in value.items()}
                if isinstance(value, dict)
                else value
            )
        case ArrayType():
            of = _local(kind.elementType, zone)
            return None if of is None else lambda value: None if value is None else [of(one) for one in value]
    return None


def _columns(found: Any) -> dict[str, Any]:
    import pyarrow as pa

    if isinstance(found, pa.StructArray):
        return dict(zip((field.name for field in found.type), found.flatten(), strict=True))
    if isinstance(found, pa.Table):
        found = found.combine_chunks()
        return {name: _one(found.column(name)) for name in found.column_names}
    if isinstance(found, pa.RecordBatch):
        return dict(zip(found.schema.names, found.columns, strict=True))
    if isinstance(found, dict):
        return {name: _one(array) for name, array in found.items()}
    raise TypeError(f"the function gave {type(found).__name__}; a StructArray, a Table or a dict of arrays is meant")


def _one(array: Any) -> Any:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        return array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    return array if isinstance(array, pa.Array) else pa.array(array)


def _named(found: Any, names: list[str]) -> dict[str, Any] | None:
    if found is None or isinstance(found, dict):
        return found
    if isinstance(found, tuple | list) and len(found) == len(names):
        return dict(zip(names, found, strict=True))
    raise TypeError(f"the function gave {found!r}; a dict or a tuple of {', '.join(names)} is meant")


def _unfit(found: dict[str, Any] | None, names: list[str], kinds: list[Any]) -> str | None:
    """What does not fit its type in one record."""
    import pyarrow as pa

    for name, kind in zip(names, kinds, strict=True):
        value = None if found is None else found.get(name)
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return f"{name} does not fit its type: {error}"
    return None
