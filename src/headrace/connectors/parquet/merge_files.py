"""Merges several Parquet files into one with Arrow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.support.durable import sync
from headrace.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyarrow import Schema, Table

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_MAX_BUFFERED_ROWS = 1 << 20
_MAX_BUFFERED_BYTES = 128 << 20
# Spark's types that Arrow reads as other types: rewritten, they would have the wrong type.
_SPARK_ONLY_TYPES = re.compile(rb'"(type|elementType|keyType|valueType)":"(variant|interval|udt|geometry|geography)')


def schema_of(file: Path) -> Schema | None:
    """The columns of a rewritten file; None if rewriting would change their types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
            schema, parquet = opened.schema_arrow, opened.schema
            leaves = [parquet.column(number) for number in range(len(parquet))]
            int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    except pa.ArrowException:
        return None
    spark_schema = (schema.metadata or {}).get(_SPARK_SCHEMA)
    if spark_schema and _SPARK_ONLY_TYPES.search(spark_schema):
        return None
    # INT96, Spark's old timestamp, is an instant, but Arrow would write it as a time without a zone.
    if any("." in path for path in int96):
        return None
    instant = pa.timestamp("us", "UTC")
    # Nullable, as Spark reads every column: rows of a file without the column have NULL.
    fields = [pa.field(field.name, instant if field.name in int96 else field.type) for field in schema]
    return pa.schema(fields, metadata={_SPARK_SCHEMA: spark_schema} if spark_schema else None)


def common_schema(first: Schema, second: Schema) -> Schema | None:
    """The columns of both schemas by name; None if a column has two types."""
    import pyarrow as pa

    try:
        common = pa.unify_schemas([first, second])
    except pa.ArrowException:
        return None
    if len({name.lower() for name in common.names}) < len(common.names):
        return None  # Spark could not read it
    return common if first.metadata == second.metadata else common.remove_metadata()


def merge(sources: Sequence[Path], target: Path, on_progress: Callable[[int], None]) -> int:
    """Write the rows of `sources` to the new file `target` and sync it; return their number.

    Calls `on_progress` with the number of rows written so far.
    """
    import pyarrow.parquet as pq

    schemas = [schema_of(source) for source in sources]
    schema = schemas[0]
    for other in schemas[1:]:
        schema = common_schema(schema, other) if schema is not None and other is not None else None
    if schema is None:
        raise HeadraceError(f"{sources[0]} and others changed while they were merged", hint="run it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    expected = 0
    options: dict[str, Any] = {"compression": "snappy", "store_schema": False, "store_decimal_as_integer": True}
    with pq.ParquetWriter(target, schema, **options) as out:
        buffer = _RowGroupBuffer(out)
        for source in sources:
            with pq.ParquetFile(source, coerce_int96_timestamp_unit="us", memory_map=True) as opened:
                expected += opened.metadata.num_rows
                for rows in opened.iter_batches(batch_size=65_536):
                    buffer.add(_with_schema(rows, schema))
            on_progress(expected)
        buffer.flush()
    written = pq.read_metadata(target).num_rows
    if written != expected:
        raise HeadraceError(f"{target} holds {counted(written, 'row')} instead of {expected:,}; nothing was published")
    sync(target)
    return written


class _RowGroupBuffer:
    """Buffers small pieces and writes them as one row group."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._pieces: list[Table] = []
        self._rows = self._bytes = 0

    def add(self, piece: Table) -> None:
        self._pieces.append(piece)
        self._rows += piece.num_rows
        self._bytes += piece.nbytes
        if self._rows >= _MAX_BUFFERED_ROWS or self._bytes >= _MAX_BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._pieces:
            self._out.write_table(pa.concat_tables(self._pieces), row_group_size=_MAX_BUFFERED_ROWS)
        self._pieces, self._rows, self._bytes = [], 0, 0


def _with_schema(rows: Any, schema: Schema) -> Table:
    """The rows with exactly the columns of `schema`; missing columns are NULL."""
    import pyarrow as pa

    columns = []
    for field in schema:
        number = rows.schema.get_field_index(field.name)
        column = pa.nulls(rows.num_rows, field.type) if number < 0 else rows.column(number)
        if column.type != field.type:
            # From INT96, which Arrow reads as UTC without a zone; other types differ only in nested field names.
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)
