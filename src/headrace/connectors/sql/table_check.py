"""A table of a SQL database and the columns that rows bring to it: created, evolved, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors.sql.identifiers import listed, quoted
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.connectors.sql.upsert import WriteMode


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that is there: `required` ones have neither a default nor room for NULL, `strict` ones may
    have a default, which is no help against a NULL that is given."""

    name: str
    kind: str
    shown: str
    required: bool
    strict: bool = False


@dataclass(frozen=True, slots=True)
class TableSchemaCheck:
    """A table, and the columns that rows bring to it, each with the type it would be created with."""

    shape: WriteMode
    sink: str
    types: Mapping[str, str]
    extra: Mapping[str, str]

    @property
    def wanted(self) -> dict[str, str]:
        return {**self.types, **{name: self.extra[name] for name in self.shape.guards}}

    def create(self) -> str:
        columns = [f"{quoted(name)} {kind}" for name, kind in self.wanted.items()]
        if self.shape.keyed:
            columns.append(f"PRIMARY KEY ({listed(self.shape.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.shape.name} ({', '.join(columns)})"

    def evolve(self, there: Sequence[Column]) -> list[str]:
        return [f"ALTER TABLE {self.shape.name} ADD COLUMN {quoted(n)} {self.wanted[n]}" for n in self.lacking(there)]

    def lacking(self, there: Sequence[Column]) -> list[str]:
        names = {column.name for column in there}
        return [name for name in self.wanted if name not in names]

    def made(
        self,
        look: Callable[[], Sequence[Column]],
        define: Callable[..., Any],
        takes: Callable[[str, Column], bool],
        *,
        create: bool,
        evolve: bool,
    ) -> Sequence[Column]:
        """The table's columns, after it was created and evolved as told; ConfigError if the rows do not fit then.

        `look` gives the columns as they are, none if there is no table; `define` carries out statements.
        """
        there = look()
        if not there and create:
            define(self.create())
            there = look()
        if there and evolve and (additions := self.evolve(there)):
            define(*additions)
            there = look()
        self._check(there, takes)
        return there

    def check(
        self, there: Sequence[Column], takes: Callable[[str, Column], bool], *, create: bool, evolve: bool
    ) -> None:
        """ConfigError if the rows would not fit after `made`; changes nothing."""
        if not there and create:
            return
        added = [Column(name, self.wanted[name], self.wanted[name], required=False) for name in self.lacking(there)]
        # A column that would be added is of the very type of the rows.
        names = {column.name for column in added}
        known = [*there, *added] if there and evolve else there
        self._check(known, lambda name, column: name in names or takes(name, column))

    def _check(self, there: Sequence[Column], fits: Callable[[str, Column], bool]) -> None:
        """ConfigError, with both sides, if the rows cannot go into the table as it is."""
        if not there:
            raise ConfigError(f"{self.sink}: there is no such table", hint="create=True makes it; or: " + self.create())
        unfit = [column for column in there if column.name in self.types and not fits(column.name, column)]
        required = [column for column in there if column.required and column.name not in self.wanted]
        lacking = self.lacking(there)
        if not (unfit or required or lacking):
            return
        said = [f"the table has no column {name}" for name in lacking]
        said += [f"{column.name} is {self.types[column.name]}, not {column.shown}" for column in unfit]
        said += [f"the rows have no column {column.name}, which the table requires" for column in required]
        rows = ", ".join(f"{name} {kind}" for name, kind in self.types.items())
        table = ", ".join(f"{column.name} {column.shown}" for column in there)
        only_lacking = not (unfit or required)
        raise ConfigError(
            f"the rows do not fit {self.sink}: {'; '.join(said)}; rows: {rows}; table: {table}",
            hint="evolve=True adds them; or: " + "; ".join(self.evolve(there))
            if only_lacking
            else "change the transform, or the table",
        )
