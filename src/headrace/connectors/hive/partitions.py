"""The partitions of a Hive table, derived from their directories. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from headrace.connectors.shared.partition_columns import BATCH
from headrace.errors import ConfigError
from headrace.spark import sql
from headrace.spark.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.types import StructType

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_directories(files: Iterable[str], depth: int) -> list[str]:
    """The directories (`day=…/kind=…`) of data files, relative to that of the batch; one empty name if `depth` is 0."""
    directories = {tuple(file.split("/")[:-1]) for file in files if not file.rpartition("/")[2].startswith(("_", "."))}
    return sorted("/".join(parts) for parts in directories if len(parts) == depth)


def partition_sql(directory: str, batch: str, location: str) -> str:
    """`PARTITION (…) LOCATION '…'` for one directory of a batch. The files of the batch are below `location`."""
    pairs = [part.partition("=") for part in directory.split("/")] if directory else []
    values = [
        f"{quoted(unquote(name))} = {'NULL' if value == _NULL else literal(unquote(value))}" for name, _, value in pairs
    ]
    values.append(f"{BATCH} = {literal(batch)}")
    path = f"{location}/{directory}" if directory else location
    return f"PARTITION ({', '.join(values)}) LOCATION {literal(path)}"


def check_columns(
    rows: StructType, table: Sequence[tuple[str, str, bool]], partition_by: Sequence[str], name: str
) -> None:
    """ConfigError, with both schemas, unless the table has the columns of the rows with their types and partitions."""
    types = {column.lower(): kind for column, kind, _ in table}
    by = {column.lower() for column, _, partition in table if partition}
    mismatched = [f for f in rows.fields if types.get(f.name.lower()) != f.dataType.simpleString()]
    expected = {BATCH, *(column.lower() for column in partition_by)}
    if not mismatched and by == expected:
        return
    shown = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.fields)
    raise ConfigError(
        f"the rows do not fit the table {name}: rows: {shown}, partitioned by {', '.join(sorted(expected))};"
        f" table: {', '.join(f'{column} {kind}' for column, kind, _ in table)},"
        f" partitioned by {', '.join(sorted(by)) or 'nothing'}",
        hint="change the transform, or name another table",
    )


def quoted(name: str) -> str:
    """A table name, with or without its database, quoted for Spark SQL."""
    return ".".join(sql.quoted(part) for part in name.split("."))
