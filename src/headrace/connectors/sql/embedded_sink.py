"""A table in a database file of this machine: rows pass through the driver, offsets lie beside them."""

from __future__ import annotations

from abc import abstractmethod
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
"""The relation a batch's rows are read from inside the transaction."""


class EmbeddedTable(DeadLetterTables):
    """What a database adds: its types, its errors, and how rows get into the relation ROWS."""

    needs_one_task_per_partition = False

    _extra: ClassVar[Mapping[str, str]]

    def __init__(self, offsets: EmbeddedOffsetStore, shape: WriteMode, *, create: bool, evolve: bool) -> None:
        self._offsets = offsets
        self._shape = shape
        self._create_table = create
        self._evolve = evolve

    @property
    def offsets(self) -> EmbeddedOffsetStore:
        return self._offsets

    @property
    def identity(self) -> str:
        return f"sinks.{self._offsets.system}({self._offsets.path_given!r}, table={self._shape.table!r})"

    @property
    def local_path(self) -> Path | None:
        return self._offsets.local_path

    @property
    def identity_columns(self) -> Sequence[str] | None:
        return self._shape.key

    @abstractmethod
    def _types(self, schema: StructType) -> dict[str, str]:
        """The type of each column in a table that is made for `schema`."""

    @abstractmethod
    def _columns(self, connection: Any, table: str) -> list[Column]:
        """The columns of a table, none if it is not there."""

    @abstractmethod
    def _takes(self, kind: str, column: Column) -> bool:
        """Whether values of the type `kind` may go into `column`."""

    @abstractmethod
    def _arrow(self, rows: DataFrame) -> Any:
        """The rows as an Arrow table of values that the database takes."""

    @abstractmethod
    def _loaded(self, connection: Any, rows: Any) -> AbstractContextManager[None]:
        """Within it, `rows` are in the relation ROWS."""

    @abstractmethod
    def _looking(self) -> AbstractContextManager[Any]:
        """A connection that cannot write; to an empty database where there is no file, which is not made."""

    @abstractmethod
    def _refusing(self) -> AbstractContextManager[None]:
        """Within it, values that the database refuses are a BadRecord, columns that it refuses a ConfigError."""

    def _there(self, connection: Any) -> list[Column]:
        return self._columns(connection, self._shape.table)

    def _has_table(self, connection: Any, table: str) -> bool:
        return bool(self._columns(connection, table))

    def prepare(self, schema: StructType) -> None:
        with self.offsets.transaction() as connection, self._refusing():
            self._make_fit(connection, schema)

    def check_target(self, schema: StructType) -> None:
        with self._looking() as connection, self._refusing():
            fit, takes = self._fit(schema)
            fit.check(self._there(connection), takes, create=self._create_table, evolve=self._evolve)

    def write(self, batch: Batch, rows: DataFrame) -> None:
        self.ensure_prepared(rows.schema)
        arrow = self._arrow(self._shape.frame(batch, rows))
        topic_check.verify()
        self._reach("rows read")
        self._store(batch, arrow, rows.schema, None)

    def write_with_dead_letters(self, batch: Batch, rows: DataFrame, dead_letters: DeadLetterBatch) -> None:
        self.ensure_prepared(rows.schema)
        arrow = self._arrow(self._shape.frame(batch, rows, traced=True))
        topic_check.verify()
        self._reach("rows read")
        try:
            self._store(batch, arrow.drop_columns(list(ORIGIN_COLUMNS)), rows.schema, dead_letters)
        except BadRecord:
            good = self._sifted(arrow, rows.schema, dead_letters)
            self._store(batch, good.drop_columns(list(ORIGIN_COLUMNS)), rows.schema, dead_letters)

    def _store(self, batch: Batch, arrow: Any, schema: StructType, dead_letters: DeadLetterBatch | None) -> None:
        """In one transaction 1. move the offsets, 2. store the rows and 3. the dead letters."""
        with self.offsets.transaction() as connection:
            self.offsets.commit_within(connection, batch)
            self._reach("offsets moved")
            with self._refusing():
                self._merge(connection, arrow, schema)
            if dead_letters is not None and (letters := dead_letters.flush()) and dead_letters.table:
                with self._refusing():  # a table of that name that is not one of letters
                    self.store_dead_letters(connection, dead_letters.table, letters)
            self._reach("rows inserted")
        self._reach("committed")

    def _reach(self, step: str) -> None:
        reach(f"{self._offsets.system.lower()}: {step}")

    def _merge(self, connection: Any, arrow: Any, schema: StructType) -> None:
        with self._loaded(connection, arrow):
            self._refuse_null_keys(connection)
            for statement in self._shape.merge(ROWS, self._shape.columns(schema.names)):
                connection.execute(statement)

    def _refuse_null_keys(self, connection: Any) -> None:
        """A row without its key replaces nothing and deletes nothing; SQLite would even make up a number for it."""
        for name in self._shape.key:
            if connection.execute(f"SELECT 1 FROM {ROWS} WHERE {quoted(name)} IS NULL LIMIT 1").fetchall():
                raise rejected_row_error(repr(self), f"{name}, which is in the key, is NULL")

    def _fit(self, schema: StructType) -> tuple[TableSchemaCheck, Callable[[str, Column], bool]]:
        stored = self._shape.columns(schema.names)
        kinds = {name: kind for name, kind in self._types(schema).items() if name in stored}
        return TableSchemaCheck(self._shape, repr(self), kinds, self._extra), lambda name, column: self._takes(
            kinds[name], column
        )

    def _make_fit(self, connection: Any, schema: StructType) -> None:
        fit, takes = self._fit(schema)

        def define(*statements: str) -> None:
            for statement in statements:
                connection.execute(statement)

        fit.made(
            lambda: self._there(connection),
            define,
            takes,
            create=self._create_table,
            evolve=self._evolve,
        )

    def _sifted(self, arrow: Any, schema: StructType, dead_letters: DeadLetterBatch) -> Any:
        """The rows that the table takes; the others are in the dead_letters then."""

        def attempt(first: int, count: int) -> str | None:
            try:
                with self.offsets.transaction() as connection, self._refusing():
                    self._merge(connection, arrow.slice(first, count).drop_columns(list(ORIGIN_COLUMNS)), schema)
                    raise _Enough
            except _Enough:
                return None
            except BadRecord as error:
                return str(error.__cause__ or error.message)

        bad = dict(bisect_rejected_rows(len(arrow), attempt, dead_letters.limit))
        places = [arrow.column(name) for name in ORIGIN_COLUMNS]
        refusals = []
        for row, why in bad.items():
            topic, partition, offset = (column[row].as_py() for column in places)
            if topic is None:
                raise rejected_row_error(repr(self), why, hint=f"keep {METADATA} in the transform")
            refusals.append(RejectedRow(RecordId(topic, partition, offset), why, f"table {self._shape.table}"))
        dead_letters.reject(refusals)
        return arrow.take([row for row in range(len(arrow)) if row not in bad])


class _Enough(Exception):
    """Ends a transaction that was only tried."""


def bisect_rejected_rows(rows: int, attempt: Callable[[int, int], str | None], most: int) -> Iterator[tuple[int, str]]:
    """Which of `rows` are refused, and why, found by halving; a little more than `most` of them at the most."""
    found = 0
    todo: list[tuple[int, int]] = [(0, rows)] if rows else []
    while todo and found <= most:
        first, count = todo.pop()
        if (why := attempt(first, count)) is None:
            continue
        if count == 1:
            found += 1
            yield first, why
        else:
            half = count // 2
            todo += [(first + half, count - half), (first, half)]
