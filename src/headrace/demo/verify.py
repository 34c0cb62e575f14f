"""Verifies the demo: compares the table with the producer's ledger, row by row."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.demo.producer import PAGES
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

Mark = tuple[int, int, "datetime"]
"""Partition, offset and time: all records below the offset were stored by that time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of rows. `missing`: acknowledged, not stored. `phantom`: stored, never sent. `damaged`: not as sent."""

    produced: int
    stored: int
    missing: int
    duplicate: int
    phantom: int
    damaged: int
    p50: float
    p99: float

    @property
    def good(self) -> bool:
        wrong = self.missing + self.duplicate + self.phantom + self.damaged
        return self.produced > 0 and self.stored == self.produced and wrong == 0


def verify(database: Path, table: str, ledger: Path, marks: Sequence[Mark]) -> Verdict:
    """Compare as multisets: every acknowledged id must be stored once, with the content that was sent."""
    duckdb = require("duckdb", extra="duckdb")
    produced = array("q")
    produced.frombytes(ledger.read_bytes())
    with duckdb.connect(str(database), read_only=True) as connection:
        connection.execute("CREATE TEMP TABLE produced AS SELECT unnest(?::BIGINT[]) AS id", [produced.tolist()])
        produced_rows, stored, missing, duplicate, phantom, damaged = _fetch_row(
            connection,
            f"""
            WITH seen AS (SELECT id, count(*) AS times FROM "{table}" GROUP BY id)
            SELECT
                (SELECT count(*) FROM produced),
                (SELECT count(*) FROM "{table}"),
                (SELECT count(*) FROM produced ANTI JOIN seen USING (id)),
                (SELECT coalesce(sum(times - 1), 0)::BIGINT FROM seen),
                (SELECT count(*) FROM seen ANTI JOIN produced USING (id)),
                (SELECT count(*) FROM "{table}" WHERE "user" IS DISTINCT FROM 'user-' || (id * 7919 % 5000)
                    OR page IS DISTINCT FROM (?::VARCHAR[])[(id * 31 % {len(PAGES)}) + 1])
            """,  # noqa: S608 - the table's name is the demo's own
            [list(PAGES)],
        )
        p50, p99 = _latency(connection, table, marks)
    return Verdict(produced_rows, stored, missing, duplicate, phantom, damaged, p50, p99)


def _latency(connection: Any, table: str, marks: Sequence[Mark]) -> tuple[float, float]:
    """Seconds from produce to store. A row counts as stored at the first mark above its offset."""
    if not marks:
        return float("nan"), float("nan")
    connection.execute('CREATE TEMP TABLE marks ("partition" INTEGER, until BIGINT, stored TIMESTAMPTZ)')
    for first in range(0, len(marks), 500):
        chunk = marks[first : first + 500]
        rows = ", ".join(["(?, ?, ?)"] * len(chunk))
        connection.execute(f"INSERT INTO marks VALUES {rows}", [value for mark in chunk for value in mark])  # noqa: S608
    p50, p99 = _fetch_row(
        connection,
        f"""
        SELECT quantile_cont(epoch(m.stored) - epoch(t."at"), 0.5), quantile_cont(epoch(m.stored) - epoch(t."at"), 0.99)
        FROM "{table}" t ASOF JOIN
            (SELECT "partition", until, min(stored) AS stored FROM marks GROUP BY ALL) m
            ON t."partition" = m."partition" AND t."offset" < m.until
        """,  # noqa: S608 - as above
        [],
    )
    return p50, p99


def _fetch_row(connection: Any, query: str, parameters: list[Any]) -> tuple[Any, ...]:
    row: tuple[Any, ...] = connection.execute(query, parameters).fetchone()
    return row
