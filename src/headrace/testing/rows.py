"""Creates the rows that a transform gets, for unit tests without Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.formats.columns import to_ddl
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_EXAMPLE = 'rows(spark, "user STRING", [("ann",)])'
_FIRST = datetime(2024, 1, 1, tzinfo=UTC)


def rows(
    spark: SparkSession,
    schema: str | StructType,
    values: Iterable[Sequence[Any] | Mapping[str, Any]],
    *,
    topic: str = "test",
) -> DataFrame:
    """A frame of `values`, tuples or dicts, with the columns of `schema` and the struct `_kafka` of a run.

    Each value is a record in partition 0 of `topic`: offsets start at 0 and timestamps at 2024-01-01, one second apart.
    A dict may override this: `{"user": "ann", "_kafka": {"partition": 2, "key": b"ann"}}`.
    """
    from pyspark.sql.types import StructField, StructType

    from headrace.engine.decoder import origin_type

    checked = to_ddl(schema, "rows(…)") if isinstance(schema, str) else schema
    columns = StructType.fromDDL(checked) if isinstance(checked, str) else checked
    if not isinstance(columns, StructType):
        raise ConfigError(f"expected columns, got the type {schema!r}", hint=_EXAMPLE)
    origin = origin_type(spark)
    values_with_origin = [
        _row(offset, value, columns.names, origin.names, topic) for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(
        values_with_origin, StructType([*columns.fields, StructField(METADATA, origin, nullable=False)])
    )


def _row(offset: int, value: Any, columns: Sequence[str], fields: Sequence[str], topic: str) -> tuple[Any, ...]:
    origin: dict[str, Any] = {
        "topic": topic,
        "partition": 0,
        "offset": offset,
        "timestamp": _FIRST + timedelta(seconds=offset),
        "key": None,
        "headers": None,
        "tombstone": False,
    }
    if not isinstance(value, Mapping):
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise ConfigError(f"row {offset}: expected a tuple or a dict, got {value!r}", hint=_EXAMPLE)
        if len(value) != len(columns):
            raise ConfigError(
                f"row {offset} has {counted(len(value), 'value')}; expected {len(columns)}: {', '.join(columns)}",
                hint=_EXAMPLE,
            )
        return *value, tuple(origin.values())
    overrides = value.get(METADATA, {})
    if not isinstance(overrides, Mapping):
        raise ConfigError(
            f"row {offset}: expected a dict in {METADATA}, got {overrides!r}", hint=f'{{"{METADATA}": {{"offset": 7}}}}'
        )
    fields_of_origin = {**origin, **overrides}
    unknown = [f"{METADATA}.{name}" for name in fields_of_origin if name not in fields]
    unknown += [name for name in value if name != METADATA and name not in columns]
    if unknown:
        raise ConfigError(
            f"row {offset}: unknown column {unknown[0]}", hint=f"columns: {', '.join(columns)}, {METADATA}"
        )
    return *(value.get(name) for name in columns), tuple(fields_of_origin[name] for name in fields)
