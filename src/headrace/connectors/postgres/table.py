"""The SQL of a PostgreSQL table and its staging tables, for rows of one schema. Executes nothing."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from headrace.connectors.postgres.copy_task import ATTEMPT, LINE
from headrace.connectors.postgres.types import column_type, copy_line, fits
from headrace.connectors.sql.identifiers import quoted, quoted_list
from headrace.connectors.sql.table_check import TableSchemaCheck
from headrace.connectors.sql.upsert import DELETED, OFFSET, ORIGIN
from headrace.errors import ConfigError
from headrace.spark.origin_columns import ORIGIN_COLUMNS
from headrace.spark.sql import column_of, times_in_utc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

    from headrace.connectors.sql.table_check import Column
    from headrace.connectors.sql.upsert import WriteMode
    from headrace.types import Batch

_GUARD_TYPES = {ORIGIN: "text", OFFSET: "bigint", DELETED: "boolean"}


class PostgresTable:
    """The table for rows of one schema."""

    def __init__(self, write_mode: WriteMode, schema: StructType) -> None:
        self.write_mode = write_mode
        self.columns = write_mode.columns(schema.names)
        self.staged = write_mode.staged(schema.names)
        self.existing: tuple[str, ...] = ()
        self.fields: dict[str, StructField] = {name: schema[name] for name in self.columns}

    def schema_check(self, sink: str, *, create: bool, evolve: bool) -> TableSchemaCheck:
        types = {name: column_type(field) for name, field in self.fields.items()}
        return TableSchemaCheck(self.write_mode, sink, types, _GUARD_TYPES, self._accepts, create, evolve)

    def _accepts(self, name: str, column: Column) -> bool:
        return fits(self.fields[name], column.type)

    def check_key(self, unique: Sequence[set[str]]) -> None:
        if set(self.write_mode.key) not in unique:
            raise ConfigError(
                f"{self.write_mode.table} has no unique index on its key ({', '.join(self.write_mode.key)})",
                hint=f"CREATE UNIQUE INDEX ON {self.write_mode.name} ({quoted_list(self.write_mode.key)})",
            )

    def lines(self, batch: Batch, rows: DataFrame, *, with_origin: bool = False) -> DataFrame:
        """The rows as lines for COPY; if `with_origin`, with ORIGIN_COLUMNS."""
        stored = self.write_mode.frame(batch, rows, with_origin=with_origin)
        fields = [stored.schema[name] for name in self.staged]
        text = copy_line([column_of(field.name) for field in fields], fields, utc=times_in_utc(rows))
        return stored.select(text.alias(LINE), *(ORIGIN_COLUMNS if with_origin else ()))

    def copy_statements(self) -> dict[str, Any]:
        """The statements with which a task writes directly to the table."""
        if not self.write_mode.keyed:
            return {"copy": f"COPY {self.write_mode.name} ({quoted_list(self.columns)}) FROM STDIN"}
        digest = hashlib.sha256(f"{self.write_mode.name} {self.staged} {self.existing}".encode()).hexdigest()[:10]
        table = f"headrace_rows_{digest}"
        return {
            # Once per session, not per batch: every CREATE leaves dead rows in the catalogue.
            "before": (
                "SET LOCAL client_min_messages = warning",
                f"CREATE TEMP TABLE IF NOT EXISTS {table} ON COMMIT DELETE ROWS AS {self._empty}",
                *self._require_key(table),
            ),
            "copy": f"COPY {table} ({quoted_list(self.staged)}) FROM STDIN",
            "after": tuple(self.write_mode.merge_statements(table, self.columns)),
        }

    def create_staging_statement(
        self, name: str, existing: Sequence[Column], checks: Sequence[tuple[str, str, list[str]]]
    ) -> str:
        """The SQL of a staging table with the constraints of the target, so that rejected rows can be found."""
        statements = [
            f"CREATE UNLOGGED TABLE {name} WITH (autovacuum_enabled = false) AS {self._empty}",
            f"ALTER TABLE {name} ADD COLUMN {ATTEMPT} bigint NOT NULL",
            f"ALTER TABLE {name} ALTER COLUMN {ATTEMPT} SET DEFAULT current_setting('headrace.attempt')::bigint",
        ]
        # A row that deletes has only its key.
        unless = f"{DELETED} OR " if self.write_mode.keyed else ""
        stored = set(self.columns)
        required = [column.name for column in existing if column.not_null and column.name in stored]
        rules = [(f"{column} is required", f"{quoted(column)} IS NOT NULL") for column in required]
        rules += [(rule, text) for rule, text, columns in checks if set(columns) <= stored]
        statements += [
            f"ALTER TABLE {name} ADD CONSTRAINT {quoted(rule[:60])} CHECK ({unless}({text}))" for rule, text in rules
        ]
        return "; ".join([*statements, *self._require_key(name)])

    @property
    def _empty(self) -> str:
        """A query that returns no rows and has the columns of a staging table."""
        extra = "".join(f", NULL::{_GUARD_TYPES[name]} AS {name}" for name in self.staged if name in _GUARD_TYPES)
        return f"SELECT {quoted_list(self.columns)}{extra} FROM {self.write_mode.name} LIMIT 0"

    def _require_key(self, table: str) -> list[str]:
        return [f"ALTER TABLE {table} ALTER COLUMN {quoted(key)} SET NOT NULL" for key in self.write_mode.key]
