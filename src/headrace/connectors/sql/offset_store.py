"""The base classes of offset stores in SQL databases."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.connectors.sql import offset_tables, own_tables
from headrace.core.offset_store import OffsetStore
from headrace.support.pipeline_folder import resolve_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.connectors.sql.offset_tables import Connection
    from headrace.core.state import AuditEntry, State
    from headrace.types import Batch


class SqlOffsetStore(OffsetStore):
    """A subclass for a database adds its transactions. A sink of the same database also writes its rows in them."""

    pipeline = ""
    """The pipeline that the store is open for."""
    _connection: Any = None

    @abstractmethod
    def _connect_for_reading(self) -> Any:
        """Open a connection of the driver without creating anything."""

    @abstractmethod
    def _has_tables(self) -> bool:
        """Whether the tables exist; ConfigError if one has a newer format."""

    @abstractmethod
    def translating_errors(self) -> AbstractContextManager[None]:
        """Translate the driver's errors to Headrace's within the block."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Connection]:
        """A transaction that no other writer of this pipeline can enter."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """A read-only transaction."""

    @property
    def connection(self) -> Any:
        """The connection of the driver, which a sink with this store also uses."""
        return self.require_open(self._connection)

    def open_for_reading(self, pipeline: str) -> str | None:
        self.pipeline = pipeline
        with self.translating_errors():
            self._connection = self._connect_for_reading()
            if self._has_tables():
                return None
        self.close()
        return f"{self!r} holds no offsets"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self) -> tuple[State, Any]:
        with self.reading() as connection:
            return offset_tables.read(connection, self.pipeline), None

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        with self.transaction() as connection:
            return offset_tables.swap(connection, self.pipeline, old, new, change)

    def history(self) -> Sequence[AuditEntry]:
        with self.reading() as connection:
            return offset_tables.history(connection, self.pipeline)

    def check_start(self, connection: Connection, batch: Batch) -> State:
        """The stored state; OffsetConflict if `batch` does not start at it, or another run holds the lease."""
        state = offset_tables.read(connection, self.pipeline)
        state.check_lease(self._lease).committed(batch)
        return state

    def commit_within(self, connection: Connection, batch: Batch) -> None:
        """Move the offsets of `batch` in the open transaction that writes its rows. OffsetConflict as `check_start`."""
        state = self.check_start(connection, batch)
        offset_tables.write(connection, self.pipeline, state, state.committed(batch))


class EmbeddedOffsetStore(SqlOffsetStore):
    """Offsets in a local database file."""

    system: ClassVar[str]
    """The name of the database."""

    def __init__(self, path: str | Path) -> None:
        self.path_given, self.path = str(path), resolve_path(path)

    @property
    def identity(self) -> str:
        return f"stores.{self.system}({self.path_given!r})"

    @property
    def local_path(self) -> Path | None:
        return self.path.absolute()

    def open_for_reading(self, pipeline: str) -> str | None:
        if not self.path.exists():
            return f"there is no file {self.path}"
        return super().open_for_reading(pipeline)

    @abstractmethod
    def _has_relation(self, name: str) -> bool:
        """Whether a table of this name exists."""

    def _has_tables(self) -> bool:
        return all(own_tables.stored_formats(self.connection, offset_tables.TABLES, self._has_relation))
