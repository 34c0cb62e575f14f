"""Compares the schema of a SQL table with the rows': creates or evolves the table, or refuses the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connectors.sql.identifiers import quoted, quoted_list
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.connectors.sql.upsert import WriteMode


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an existing table. `required`: it is NOT NULL without a default, so rows must have it."""

    name: str
    type: str
    full_type: str
    """The type with its precision, for error messages."""
    required: bool
    not_null: bool = False


@dataclass(frozen=True, slots=True)
class TableSchemaCheck:
    """Compares a table with the columns of the rows; creates and evolves it if the settings allow that."""

    write_mode: WriteMode
    sink: str
    types: Mapping[str, str]
    """The columns of the rows, with their types in a new table."""
    guard_types: Mapping[str, str]
    accepts: Callable[[str, Column], bool]
    """Returns whether a column of the table accepts the values of the rows' column with this name."""
    create: bool
    evolve: bool

    @property
    def expected(self) -> dict[str, str]:
        return {**self.types, **{name: self.guard_types[name] for name in self.write_mode.guard_columns}}

    def create_statement(self) -> str:
        columns = [f"{quoted(name)} {type_}" for name, type_ in self.expected.items()]
        if self.write_mode.keyed:
            columns.append(f"PRIMARY KEY ({quoted_list(self.write_mode.key)})")
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
        """Create and evolve the table; return its columns. ConfigError if the rows still do not fit.

        `read_columns` returns no columns if the table does not exist; `execute` executes statements.
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
        # A column that would be added has the type of the rows.
        names = {column.name for column in added}
        columns = [*existing, *added] if existing and self.evolve else existing
        self._check(columns, lambda name, column: name in names or self.accepts(name, column))

    def _check(self, existing: Sequence[Column], accepts: Callable[[str, Column], bool]) -> None:
        """ConfigError, with both schemas, if the rows do not fit the current table."""
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
