"""The base class of sinks in a local database file: the driver writes rows and offsets in one transaction."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.sql.dead_letter_table import DeadLetterTables
from headrace.connectors.sql.identifiers import quoted
from headrace.connectors.sql.table_check import TableSchemaCheck
from headrace.core import topic_check
from headrace.core.dead_letters import RecordId, RejectedRow, rejected_row_error
from headrace.core.sink import METADATA
from headrace.errors import BadRecord
from headrace.spark.origin_columns import ORIGIN_COLUMNS
from headrace.support.crashpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.connectors.sql.offset_store import EmbeddedOffsetStore
    from headrace.connectors.sql.table_check import Column
    from headrace.connectors.sql.upsert import WriteMode
    from headrace.core.dead_letters import DeadLetterBatch
    from headrace.types import Batch

ROWS = "headrace_rows"
"""The temporary relation from which the transaction reads the rows of the batch."""


class EmbeddedTable(DeadLetterTables):
    """A table in a database file. A subclass adds types, errors, and the staging of rows in the relation ROWS."""

    needs_one_task_per_partition = False

    _guard_types: ClassVar[Mapping[str, str]]

    def __init__(self, offsets: EmbeddedOffsetStore, write_mode: WriteMode, *, create: bool, evolve: bool) -> None:
        self._offsets = offsets
        self._write_mode = write_mode
        self._create_table = create
        self._evolve = evolve

    @property
    def offsets(self) -> EmbeddedOffsetStore:
        return self._offsets

    @property
    def identity(self) -> str:
        return f"sinks.{self._offsets.system}({self._offsets.path_given!r}, table={self._write_mode.table!r})"

    @property
    def local_path(self) -> Path | None:
        return self._offsets.local_path

    @property
    def replaces_rows(self) -> bool:
        return self._write_mode.keyed

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._write_mode.key

    @abstractmethod
    def _column_types(self, schema: StructType) -> dict[str, str]:
        """The type of each column in a table that is created for `schema`."""

    @abstractmethod
    def _read_columns(self, connection: Any, table: str) -> list[Column]:
        """The columns of a table; none if it does not exist."""

    @abstractmethod
    def _accepts(self, row_type: str, column: Column) -> bool:
        """Whether `column` accepts values of this type."""

    @abstractmethod
    def _to_arrow(self, rows: DataFrame) -> Any:
        """The rows as an Arrow table, with values that the database accepts."""

    @abstractmethod
    def _staged(self, connection: Any, rows: Any) -> AbstractContextManager[None]:
        """Within the block, the relation ROWS has `rows`."""

    @abstractmethod
    def _connected_read_only(self) -> AbstractContextManager[Any]:
        """A read-only connection. If the file does not exist, it is not created: the database is empty."""

    @abstractmethod
    def _translating_row_errors(self) -> AbstractContextManager[None]:
        """Within the block, values that the database rejects raise BadRecord; columns that it rejects, ConfigError."""

    def _has_table(self, connection: Any, table: str) -> bool:
        return bool(self._read_columns(connection, table))

    def prepare(self, schema: StructType) -> None:
        with self.offsets.transaction() as connection, self._translating_row_errors():

            def execute(statements: Sequence[str]) -> None:
                for statement in statements:
                    connection.execute(statement)

            read_columns = partial(self._read_columns, connection, self._write_mode.table)
            self._schema_check(schema).ensure_table(read_columns, execute)

    def check_target(self, schema: StructType) -> None:
        with self._connected_read_only() as connection, self._translating_row_errors():
            self._schema_check(schema).check(self._read_columns(connection, self._write_mode.table))

    def write(self, batch: Batch, rows: DataFrame) -> None:
        self.ensure_prepared(rows.schema)
        arrow = self._to_arrow(self._write_mode.frame(batch, rows))
        topic_check.verify()
        self._reach("rows read")
        self._store(batch, arrow, rows.schema, None)

    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        self.ensure_prepared(rows.schema)
        arrow = self._to_arrow(self._write_mode.frame(batch, rows, with_origin=True))
        topic_check.verify()
        self._reach("rows read")
        try:
            self._store(batch, arrow.drop_columns(list(ORIGIN_COLUMNS)), rows.schema, dead_letters)
        except BadRecord:
            good = self._divert_rejected_rows(arrow, rows.schema, dead_letters)
            self._store(batch, good.drop_columns(list(ORIGIN_COLUMNS)), rows.schema, dead_letters)

    def _store(self, batch: Batch, arrow: Any, schema: StructType, dead_letters: DeadLetterBatch | None) -> None:
        """In one transaction 1. move the offsets, 2. store the rows and 3. the dead letters."""
        with self.offsets.transaction() as connection:
            self.offsets.commit_within(connection, batch)
            self._reach("offsets moved")
            with self._translating_row_errors():
                self._merge(connection, arrow, schema)
            if dead_letters is not None and (letters := dead_letters.flush()) and dead_letters.table:
                with self._translating_row_errors():  # the dead-letter table may have other columns
                    self.store_dead_letters(connection, dead_letters.table, letters)
            self._reach("rows inserted")
        self._reach("committed")

    def _reach(self, step: str) -> None:
        reach(f"{self._offsets.system.lower()}: {step}")

    def _merge(self, connection: Any, arrow: Any, schema: StructType) -> None:
        with self._staged(connection, arrow):
            self._refuse_null_keys(connection)
            for statement in self._write_mode.merge_statements(ROWS, self._write_mode.columns(schema.names)):
                connection.execute(statement)

    def _refuse_null_keys(self, connection: Any) -> None:
        """Refuse rows with a NULL in their key: they replace and delete nothing, and SQLite would generate a key."""
        for name in self._write_mode.key:
            if connection.execute(f"SELECT 1 FROM {ROWS} WHERE {quoted(name)} IS NULL LIMIT 1").fetchall():
                raise rejected_row_error(repr(self), f"{name}, which is in the key, is NULL")

    def _schema_check(self, schema: StructType) -> TableSchemaCheck:
        stored = self._write_mode.columns(schema.names)
        types = {name: type_ for name, type_ in self._column_types(schema).items() if name in stored}

        def accepts(name: str, column: Column) -> bool:
            return self._accepts(types[name], column)

        return TableSchemaCheck(
            self._write_mode, repr(self), types, self._guard_types, accepts, self._create_table, self._evolve
        )

    def _divert_rejected_rows(self, arrow: Any, schema: StructType, dead_letters: DeadLetterBatch) -> Any:
        """Add the rows that the table rejects to `dead_letters`; return the others."""

        def rejection(first: int, count: int) -> str | None:
            try:
                with self.offsets.transaction() as connection, self._translating_row_errors():
                    self._merge(connection, arrow.slice(first, count).drop_columns(list(ORIGIN_COLUMNS)), schema)
                    raise _RollBack
            except _RollBack:
                return None
            except BadRecord as error:
                return str(error.__cause__ or error.message)

        reasons = dict(bisect_rejected_rows(len(arrow), rejection, dead_letters.limit))
        origin_columns = [arrow.column(name) for name in ORIGIN_COLUMNS]
        rejected = []
        for row, reason in reasons.items():
            topic, partition, offset = (column[row].as_py() for column in origin_columns)
            if topic is None:
                raise rejected_row_error(repr(self), reason, hint=f"keep {METADATA} in the transform")
            rejected.append(RejectedRow(RecordId(topic, partition, offset), reason, f"table {self._write_mode.table}"))
        dead_letters.reject(rejected)
        return arrow.take([row for row in range(len(arrow)) if row not in reasons])


class _RollBack(Exception):
    """Rolls back a transaction that only tested the rows."""


def bisect_rejected_rows(
    rows: int, rejection: Callable[[int, int], str | None], limit: int
) -> Iterator[tuple[int, str]]:
    """Find the numbers of rejected rows and the reasons by bisection; stops soon after `limit` of them.

    `rejection` writes `count` rows starting at `first`. It returns the reason if they are rejected, else None.
    """
    rejected = 0
    pending: list[tuple[int, int]] = [(0, rows)] if rows else []
    while pending and rejected <= limit:
        first, count = pending.pop()
        if (reason := rejection(first, count)) is None:
            continue
        if count == 1:
            rejected += 1
            yield first, reason
        else:
            half = count // 2
            pending += [(first + half, count - half), (first, half)]
