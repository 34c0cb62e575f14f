"""Checks whether a repeated batch gives the same rows: exactly-once depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.delivery import Guarantee
from headrace.core.sink import IdempotentSink
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.engine.lineage import Lineage
    from headrace.runtime.pipeline import Pipeline


def refuse_volatile_keys(pipeline: Pipeline, lineage: Lineage) -> None:
    """ConfigError if a repeated batch would not find its own rows, although the guarantee needs that."""
    if pipeline.guaranteed is not Guarantee.EXACTLY_ONCE or not isinstance(pipeline.sink, IdempotentSink):
        return
    names = pipeline.sink.identity_columns
    volatile = {name: reason for name, reason in lineage.columns.items() if names is None or name in names}
    for name, expression in volatile.items():
        raise ConfigError(
            f"{expression} gives column {name} another value each time a batch is read, and {pipeline.sink!r} finds the"
            f" rows of a repeated batch by {name}: they would be stored twice, which is not exactly-once",
            hint=f"compute {name} from the record: to_date(_kafka.timestamp),"
            ' concat(_kafka.partition, "-", _kafka.offset)',
        )


def replay_warnings(lineage: Lineage) -> list[str]:
    """Columns and rows that differ when a batch is repeated, and operations that see one batch only."""
    return [
        *(
            f"column {name} has another value each time a batch is read: {reason}"
            for name, reason in lineage.columns.items()
        ),
        *(f"a batch that is repeated may have other rows: {reason}" for reason in lineage.rows),
        *(
            f"{operation} sees one batch only: results over all records belong where the rows are read"
            for operation in lineage.per_batch
        ),
    ]
