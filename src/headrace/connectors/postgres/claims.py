"""The claim of a run on its pipeline: tasks check it when they commit, so tasks of an earlier run commit nothing."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from headrace.connectors.postgres.client import ensure_tables
from headrace.connectors.postgres.copy_task import claim_lost_error
from headrace.connectors.postgres.offset_store import Postgres
from headrace.connectors.sql import offset_tables
from headrace.connectors.sql.own_tables import OwnTable
from headrace.errors import OffsetConflict, RetriableError
from headrace.support.crashpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.connectors.postgres.client import Connection
    from headrace.core.state import RunLease
    from headrace.types import Batch

_TABLE = OwnTable(
    "headrace_claims", "CREATE TABLE IF NOT EXISTS headrace_claims (pipeline TEXT PRIMARY KEY, claim TEXT NOT NULL)"
)
_CLAIM = """INSERT INTO headrace_claims (pipeline, claim) VALUES (?, ?)
    ON CONFLICT (pipeline) DO UPDATE SET claim = excluded.claim"""


class ClaimedOffsets(Postgres):
    """The offsets of a sink and the claim of its run. Calls `after_claim` when the claim is stored."""

    def __init__(self, dsn: str, after_claim: Callable[[], None]) -> None:
        super().__init__(dsn)
        self.claim = ""
        self._after_claim = after_claim
        self._has_table = self._is_claimed = False

    def open(self, pipeline: str) -> Self:
        self.claim = uuid.uuid4().hex
        self._has_table = self._is_claimed = False
        return super().open(pipeline)

    def ensure_claims_table(self) -> None:
        ensure_tables(self.connection, _TABLE)
        self._has_table = True

    def set_lease(self, run: RunLease | None, check: Callable[[RunLease | None], None] = lambda lease: None) -> None:
        super().set_lease(run, check)
        if run is not None and self._has_table:
            with self.transaction() as connection:
                offset_tables.read(connection, self.pipeline).check_lease(run)
                connection.execute(_CLAIM, [self.pipeline, self.claim])
            self._after_claiming()

    def claim_for(self, batch: Batch) -> None:
        """Claim the pipeline unless this run has. OffsetConflict if `batch` cannot be next or the claim is lost."""
        with self.transaction() as connection:
            state = self.check_start(connection, batch)
            if state.progress.pending is not None:
                # The pending batch came from another store. After a task moves its offset it could not be repeated.
                progress = replace(state.progress, pending=None)
                offset_tables.write(connection, self.pipeline, state, replace(state, progress=progress))
            first = not self._is_claimed
            if first:
                connection.execute(_CLAIM, [self.pipeline, self.claim])
            else:
                self.require_claim(connection)
        if first:
            self._after_claiming()
        reach("postgres: claimed")

    def _after_claiming(self) -> None:
        self._is_claimed = True
        with self.translating_errors():
            self._after_claim()

    def holds_claim(self, connection: Connection) -> bool:
        query = "SELECT claim FROM headrace_claims WHERE pipeline = ?"
        return connection.execute(query, [self.pipeline]).fetchall() == [(self.claim,)]

    def require_claim(self, connection: Connection) -> None:
        if not self.holds_claim(connection):
            raise claim_lost_error(self.pipeline)

    @contextmanager
    def checking_claim(self) -> Iterator[None]:
        """If tasks fail in the block, check by the claim, not by their error, whether another run has taken over."""
        try:
            yield
        except (OffsetConflict, RetriableError) as error:
            with self.transaction() as connection:
                holds_claim = self.holds_claim(connection)
            if not holds_claim:
                raise claim_lost_error(self.pipeline) from error
            if isinstance(error, RetriableError):
                raise
            # No other run may move offsets, so an own commit whose reply was lost has succeeded late.
            raise RetriableError(error.message, hint=error.hint) from error

    def record_batch(self, batch: Batch) -> None:
        """Store the id of `batch`. Each task has moved its own offset; this changes no offsets."""
        with self.transaction() as connection:
            state = offset_tables.read(connection, self.pipeline)
            if self.holds_claim(connection):
                progress = replace(state.progress.advanced(batch), offsets=state.progress.offsets)
                offset_tables.write(connection, self.pipeline, state, replace(state, progress=progress))
