"""A table in Cassandra for rows of one schema: its CQL, and whether the rows fit it. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.cassandra.types import CqlType, fits, new_type
from headrace.connectors.sql.identifiers import listed, quoted
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

_LIFETIMES = frozenset({"byte", "short", "integer", "long"})


@dataclass(frozen=True, slots=True)
class Column:
    """One that is there: `role` is partition_key, clustering, static or regular."""

    name: str
    role: str
    shown: str
    kind: CqlType


@dataclass(frozen=True, slots=True)
class Layout:
    """The key as the table has it: the columns that choose the partition, then those that order the rows in it."""

    partition: tuple[str, ...]
    clustering: tuple[str, ...]

    @classmethod
    def of(cls, key: str | Sequence[str | Sequence[str]]) -> Layout:
        """As CQL reads it: of ("a", "b", "c") the first is the partition's, of (("a", "b"), "c") the first two."""
        parts = [key] if isinstance(key, str) else list(key)
        first = parts[0] if parts else ()
        rest = parts[1:]
        if not all(isinstance(name, str) for name in rest):
            raise ConfigError(f"key={key!r}: only its first part may be several columns", hint='key=(("a", "b"), "c")')
        return cls((first,) if isinstance(first, str) else tuple(first), tuple(str(name) for name in rest))

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.partition, *self.clustering)

    def __str__(self) -> str:
        return ", ".join([f"({listed(self.partition)})", *map(quoted, self.clustering)])


class Table:
    """The table as rows with columns of these types need it. `by_origin`: each is under its record's own key."""

    def __init__(
        self, name: str, layout: Layout, types: Mapping[str, DataType], ttl: str | None, *, by_origin: bool
    ) -> None:
        self.name = name
        self.layout = layout
        self.names = [column for column in types if column != ttl]
        self.types = {column: types[column] for column in self.names}
        self.by_origin = by_origin
        if ttl is not None and ttl not in types:
            raise ConfigError(
                f"the rows have no column {ttl}, which ttl= names", hint="a column of whole seconds, or a number"
            )
        if ttl is not None and (kind := types[ttl]).typeName() not in _LIFETIMES:
            raise ConfigError(f"{ttl}, which ttl= names, is {kind.simpleString()}", hint="a column of whole seconds")

    @property
    def insert(self) -> str:
        """Every column is written, NULL or not: what was there before goes."""
        marks = ", ".join("?" for _ in self.names)
        return f"INSERT INTO {self.name} ({listed(self.names)}) VALUES ({marks}) USING TIMESTAMP ? AND TTL ?"

    @property
    def delete(self) -> str:
        same = " AND ".join(f"{quoted(name)} = ?" for name in self.layout.columns)
        return f"DELETE FROM {self.name} USING TIMESTAMP ? WHERE {same}"

    def create(self) -> str:
        columns = ", ".join(f"{quoted(name)} {new_type(name, kind)}" for name, kind in self.types.items())
        order = ""
        if self.by_origin and "offset" in self.layout.clustering:
            # The newest of a partition first: where a run stands is one row away.
            order = ", ".join(f"{quoted(n)} {'DESC' if n == 'offset' else 'ASC'}" for n in self.layout.clustering)
            order = f" WITH CLUSTERING ORDER BY ({order})"
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}, PRIMARY KEY ({self.layout})){order}"

    def check(self, there: Sequence[Column], sink: str) -> dict[str, CqlType]:
        """The types of the columns; ConfigError, with both sides, if the rows cannot go into the table as it is."""
        if not there:
            raise ConfigError(f"{sink}: there is no such table", hint="create=True makes it; or: " + self.create())
        if counters := [column.name for column in there if column.kind.name == "counter"]:
            raise ConfigError(
                f"{sink}: {counters[0]} is a counter; an increment that is repeated after a crash is counted twice, and"
                " nobody can tell",
                hint="count in the transform and store the number by key, or read it off the rows",
            )
        said = [one for column in there if column.name in self.types and (one := self._misfit(column))]
        names = {column.name for column in there}
        said += [f"the table has no column {name}" for name in self.names if name not in names]
        key = [column.name for column in there if column.role in ("partition_key", "clustering")]
        if set(key) != set(self.layout.columns):
            said.append(f"its primary key is ({', '.join(key)}), not ({', '.join(self.layout.columns)})")
        if said:
            rows = ", ".join(f"{name} {kind.simpleString()}" for name, kind in self.types.items())
            table = ", ".join(f"{column.name} {column.shown}" for column in there)
            raise ConfigError(
                f"the rows do not fit {sink}: {'; '.join(said)}; rows: {rows}; table: {table}",
                hint="change the transform, key=, or the table",
            )
        return {column.name: column.kind for column in there}

    def _misfit(self, column: Column) -> str | None:
        if column.role == "static":
            return f"{column.name} is static: a repeated row would put the value of an older one back for all of them"
        if column.kind.loose:
            return (
                f"{column.name} is {column.shown}, which has its elements twice when a write is repeated: make it"
                f" frozen<{column.shown}>"
            )
        if not fits(self.types[column.name], column.kind):
            return f"{column.name} is {self.types[column.name].simpleString()}, not {column.shown}"
        return None
