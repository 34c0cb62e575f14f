"""The CQL of a Cassandra table for rows of one schema, and the check of an existing table. Runs no statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.cassandra.types import CqlType, cql_type, fits
from headrace.connectors.sql.identifiers import quoted, quoted_list
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

_TTL_TYPES = frozenset({"byte", "short", "integer", "long"})


@dataclass(frozen=True, slots=True)
class CqlColumn:
    """A column of an existing table. `role` is partition_key, clustering, static or regular."""

    name: str
    role: str
    type_text: str
    type: CqlType


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """The columns of the partition key, then those that order the rows within a partition."""

    partition: tuple[str, ...]
    clustering: tuple[str, ...]

    @classmethod
    def of(cls, key: str | Sequence[str | Sequence[str]]) -> PrimaryKey:
        """The partition key of ("a", "b", "c") is "a", that of (("a", "b"), "c") is "a" and "b", as in CQL."""
        parts = [key] if isinstance(key, str) else list(key)
        first = parts[0] if parts else ()
        rest = parts[1:]
        if not all(isinstance(name, str) for name in rest):
            raise ConfigError(
                f"expected key= to be columns, of which only the first may be a tuple, got {key!r}",
                hint='key=(("a", "b"), "c")',
            )
        return cls((first,) if isinstance(first, str) else tuple(first), tuple(str(name) for name in rest))

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.partition, *self.clustering)

    def __str__(self) -> str:
        return ", ".join([f"({quoted_list(self.partition)})", *map(quoted, self.clustering)])


class CqlTable:
    """The table that rows with columns of these types need. `by_origin`: the key of a row is the id of its record."""

    def __init__(
        self, name: str, key: PrimaryKey, types: Mapping[str, DataType], ttl: str | None, *, by_origin: bool
    ) -> None:
        self.name = name
        self.key = key
        self.names = [column for column in types if column != ttl]
        self.types = {column: types[column] for column in self.names}
        self.by_origin = by_origin
        if ttl is not None and ttl not in types:
            raise ConfigError(
                f"ttl={ttl!r}: the rows have no column of that name", hint=f"columns of the rows: {', '.join(types)}"
            )
        if ttl is not None and (column_type := types[ttl]).typeName() not in _TTL_TYPES:
            raise ConfigError(
                f"ttl={ttl!r}: expected a column of whole seconds, got {column_type.simpleString()}",
                hint=f"CAST({ttl} AS INT) in the transform",
            )

    @property
    def insert(self) -> str:
        """Writes every column, also NULL, which replaces an earlier value."""
        parameters = ", ".join("?" for _ in self.names)
        return f"INSERT INTO {self.name} ({quoted_list(self.names)}) VALUES ({parameters}) USING TIMESTAMP ? AND TTL ?"

    @property
    def delete(self) -> str:
        condition = " AND ".join(f"{quoted(name)} = ?" for name in self.key.columns)
        return f"DELETE FROM {self.name} USING TIMESTAMP ? WHERE {condition}"

    def create(self) -> str:
        columns = ", ".join(f"{quoted(name)} {cql_type(name, kind)}" for name, kind in self.types.items())
        order = ""
        if self.by_origin and "offset" in self.key.clustering:
            # Descending offsets: the newest row of a partition is the first one.
            order = ", ".join(f"{quoted(n)} {'DESC' if n == 'offset' else 'ASC'}" for n in self.key.clustering)
            order = f" WITH CLUSTERING ORDER BY ({order})"
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}, PRIMARY KEY ({self.key})){order}"

    def check(self, columns: Sequence[CqlColumn], sink: str) -> dict[str, CqlType]:
        """The types of the table's columns. ConfigError, with both schemas, if the table cannot store the rows."""
        if not columns:
            raise ConfigError(f"{sink}: there is no such table", hint="create=True creates it; or: " + self.create())
        if counters := [column.name for column in columns if column.type.name == "counter"]:
            raise ConfigError(
                f"{sink}: {counters[0]} is a counter: an increment that is repeated after a crash is counted twice",
                hint="count in the transform and store the count by key, or compute it from the rows",
            )
        problems = [problem for column in columns if column.name in self.types and (problem := self._misfit(column))]
        names = {column.name for column in columns}
        problems += [f"the table has no column {name}" for name in self.names if name not in names]
        key = [column.name for column in columns if column.role in ("partition_key", "clustering")]
        if set(key) != set(self.key.columns):
            problems.append(f"its primary key is ({', '.join(key)}), not ({', '.join(self.key.columns)})")
        if problems:
            rows = ", ".join(f"{name} {kind.simpleString()}" for name, kind in self.types.items())
            table = ", ".join(f"{column.name} {column.type_text}" for column in columns)
            raise ConfigError(
                f"the rows do not fit {sink}: {'; '.join(problems)}; rows: {rows}; table: {table}",
                hint="change the transform, key=, or the table",
            )
        return {column.name: column.type for column in columns}

    def _misfit(self, column: CqlColumn) -> str | None:
        """The reason why the column cannot store its values; None if it can."""
        if column.role == "static":
            return f"{column.name} is static: a repeated older row would replace the value that all rows share"
        if column.type.is_unfrozen_list:
            return (
                f"{column.name} is {column.type_text}, which stores its elements twice when a write is repeated: change"
                f" it to frozen<{column.type_text}>"
            )
        if not fits(self.types[column.name], column.type):
            return f"{column.name} is {self.types[column.name].simpleString()}, not {column.type_text}"
        return None
