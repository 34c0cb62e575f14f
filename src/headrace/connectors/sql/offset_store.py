"""Offsets in a SQL database: what its stores have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from headrace.connectors.sql import offset_tables
from headrace.core.offset_store import OffsetStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from headrace.connectors.sql.offset_tables import Connection
    from headrace.core.state import AuditEntry, State
    from headrace.types import Batch


class SqlOffsetStore(OffsetStore):
    """A database adds its transactions. A sink of the same database writes its rows in them, too."""

    pipeline = ""
    """The pipeline that it is open for."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Connection]:
        """A transaction that no other writer of this pipeline can enter."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction that changes nothing."""

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
        state.held_by(self._lease).committed(batch)
        return state

    def commit_within(self, connection: Connection, batch: Batch) -> None:
        """Move the offsets of `batch` in an open transaction of this store, with its rows. OffsetConflict as above."""
        state = self.check_start(connection, batch)
        offset_tables.write(connection, self.pipeline, state, state.committed(batch))
