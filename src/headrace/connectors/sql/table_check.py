"""The schema of a SQL table against that of the rows: the table is created, evolved, or the rows are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.sql.identifiers import listed, quoted
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.connectors.sql.upsert import WriteMode


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an existing table. `required`: rows without it are refused, for it has no default and is NOT NULL."""

    name: str
    type: str
    full_type: str
    """With its precision, as error messages show it."""
    required: bool
    not_null: bool = False


@dataclass(frozen=True, slots=True)
class TableSchemaCheck:
    """Compares a table with the columns of the rows; creates and evolves it, where the settings allow that."""

    write_mode: WriteMode
    sink: str
    types: Mapping[str, str]
    """The columns of the rows, each with the type that it would be created with."""
    guard_types: Mapping[str, str]
    accepts: Callable[[str, Column], bool]
    """Whether a column of the table takes the values of the rows' column of this name."""
    create: bool
    evolve: bool

    @property
    def expected(self) -> dict[str, str]:
        return {**self.types, **{name: self.guard_types[name] for name in self.write_mode.guard_columns}}

    def create_statement(self) -> str:
        columns = [f"{quoted(name)} {type_}" for name, type_ in self.expected.items()]
        if self.write_mode.keyed:
            columns.append(f"PRIMARY KEY ({listed(self.write_mode.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.write_mode.name} ({', '.join(columns)})"

    def alter_statements(self, existing: Sequence[Column]) -> list[str]:
        add = f"ALTER TABLE {self.write_mode.name} ADD COLUMN"
        return [f"{add} {quoted(name)} {self.expected[name]}" for name in self.missing(existing)]

    def missing(self, existing: Sequence[Column]) -> list[str]:
        names = {column.name for column in existing}
        return [name for name in self.expected if name not in names]

    def ensure_table(
        self, read_columns: Callable[[], Sequence[Column]], execute: Callable[[Sequence[str]], object]
    ) -> Sequence[Column]:
        """Create and evolve the table; its columns. ConfigError if the rows do not fit then.

        `read_columns` returns none if the table does not exist; `execute` carries out statements.
        """
        existing = read_columns()
        if not existing and self.create:
            execute([self.create_statement()])
            existing = read_columns()
        if existing and self.evolve and (statements := self.alter_statements(existing)):
            execute(statements)
            existing = read_columns()
        self._check(existing, self.accepts)
        return existing

    def check(self, existing: Sequence[Column]) -> None:
        """ConfigError if `ensure_table` would raise it; changes nothing."""
        if not existing and self.create:
            return
        added = [Column(n, self.expected[n], self.expected[n], required=False) for n in self.missing(existing)]
        # A column that would be added is of the very type of the rows.
        names = {column.name for column in added}
        columns = [*existing, *added] if existing and self.evolve else existing
        self._check(columns, lambda name, column: name in names or self.accepts(name, column))

    def _check(self, existing: Sequence[Column], accepts: Callable[[str, Column], bool]) -> None:
        """ConfigError, with both schemas, if the rows cannot go into the table as it is."""
        if not existing:
            raise ConfigError(
                f"{self.sink}: there is no such table", hint="create=True makes it; or: " + self.create_statement()
            )
        unfit = [column for column in existing if column.name in self.types and not accepts(column.name, column)]
        required = [column for column in existing if column.required and column.name not in self.expected]
        missing = self.missing(existing)
        if not (unfit or required or missing):
            return
        reasons = [f"the table has no column {name}" for name in missing]
        reasons += [f"{column.name} is {self.types[column.name]}, not {column.full_type}" for column in unfit]
        reasons += [f"the rows have no column {column.name}, which the table requires" for column in required]
        rows = ", ".join(f"{name} {type_}" for name, type_ in self.types.items())
        table = ", ".join(f"{column.name} {column.full_type}" for column in existing)
        evolvable = not (unfit or required)
        raise ConfigError(
            f"the rows do not fit {self.sink}: {'; '.join(reasons)}; rows: {rows}; table: {table}",
            hint="evolve=True adds them; or: " + "; ".join(self.alter_statements(existing))
            if evolvable
            else "change the transform, or the table",
        )
