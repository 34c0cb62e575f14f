"""Writes all rows of a record in one DynamoDB transaction: readers see all of them or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.connectors.dynamodb import client as dynamodb_client
from headrace.connectors.dynamodb.writer import ITEM_ERRORS, PARALLEL_REQUESTS
from headrace.connectors.shared import log_order
from headrace.connectors.shared.document_encoder import UnsupportedValue
from headrace.connectors.shared.keyed_sink import null_in_key, row_of
from headrace.connectors.shared.rejected_rows import RejectedRows
from headrace.spark.tasks import Report
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.connectors.dynamodb.client import WriteUnitLimiter
    from headrace.connectors.dynamodb.writer import DynamoDBWriter, Put
    from headrace.core.dead_letters import RecordId

_MAX_ROWS = 100
_WAVE = 64
_NEWER_EXISTS = "ConditionalCheckFailed"
_REJECTED = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})
_TEMPORARY = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})


class _Record(NamedTuple):
    origin: RecordId
    puts: Sequence[Put]

    @property
    def keys(self) -> set[Any]:
        return {put.row.key for put in self.puts}


@dataclass(frozen=True, slots=True)
class WriteRecordsTask:
    """Writes the rows of a task in the order of the log. `limit` records may be rejected; None: none."""

    writer: DynamoDBWriter
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> Report:
        rejected = RejectedRows(self.writer.sink, self.limit)
        stored = 0
        client, limiter = self.writer.target.client(), self.writer.target.limiter()  # shared: both are thread-safe
        with (
            dynamodb_client.translate_error(self.writer.sink),
            ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="headrace-dynamodb") as pool,
        ):
            for wave in _waves(self._records(batches, rejected)):
                reasons = list(pool.map(lambda record: self._write(client, limiter, record), wave))
                for record, reason in zip(wave, reasons, strict=True):
                    if reason is None:
                        stored += len(record.puts)
                    else:
                        rejected.add(record.origin, reason)
        return Report(stored, refused=rejected.rows)

    def _records(self, batches: Iterator[Any], rejected: RejectedRows) -> Iterator[_Record]:
        """The records whose rows can all be stored."""
        encoders = self.writer.encoders()
        for origin, found in log_order.group_by_record(batches, rejected):
            if any(bad == origin for bad, _ in rejected.rows):  # one of its rows could not be read
                continue
            try:
                record = _Record(origin, self._puts(origin, found, encoders))
            except UnsupportedValue as error:
                rejected.add(origin, str(error))
            else:
                yield record

    def _puts(
        self, origin: RecordId, found: Sequence[dict[str, Any]], encoders: Mapping[str, Callable[[Any], Any]]
    ) -> list[Put]:
        """One put per key: the last row with that key."""
        rows = {row.key: row for row in (row_of(origin, values, self.writer.key) for values in found)}
        if len(rows) > _MAX_ROWS:
            raise UnsupportedValue(
                f"expected at most {_MAX_ROWS} rows of one record, the limit of a transaction, got {len(rows)}"
            )
        for row in rows.values():
            if None in row.key:
                raise UnsupportedValue(null_in_key(row, self.writer.key))
        return [self.writer.put(row, encoders) for row in rows.values()]

    def _write(self, client: Any, limiter: WriteUnitLimiter | None, record: _Record) -> str | None:
        """Store a record. Returns the reason if DynamoDB rejects it, else None."""
        if len(record.puts) == 1:  # a transaction costs twice as much
            return self.writer.write_item(client, limiter, record.puts[0])
        errors = require("botocore.exceptions", extra="dynamodb")
        remaining = record.puts

        def attempt() -> bool:
            nonlocal remaining
            if limiter:
                limiter.wait()
            operations = [{"Put": self.writer.request(put)} for put in remaining]
            try:
                answer = client.transact_write_items(TransactItems=operations, ReturnConsumedCapacity="TOTAL")
            except client.exceptions.TransactionCanceledException as error:
                codes = [reason.get("Code") for reason in _reasons(error)]
                # A newer item only prevents the put of its own key; still store the other items of this record.
                remaining = [put for put, code in zip(remaining, codes, strict=True) if code != _NEWER_EXISTS]
                if remaining and not {_NEWER_EXISTS, *_TEMPORARY} & set(codes):
                    raise
                return not remaining
            if limiter:
                limiter.spend(sum(used["CapacityUnits"] for used in answer.get("ConsumedCapacity", ())))
            return True

        try:
            dynamodb_client.write_until_done(attempt, self.writer.sink)
        except errors.ClientError as error:
            if (reason := _rejection(error)) is None:
                raise
            return reason
        return None


def _waves(records: Iterator[_Record]) -> Iterator[list[_Record]]:
    """Groups of records that can be written concurrently, because no two of them share a key."""
    wave: list[_Record] = []
    keys: set[Any] = set()
    for record in records:
        if len(wave) == _WAVE or keys & record.keys:
            yield wave
            wave, keys = [], set()
        wave.append(record)
        keys |= record.keys
    if wave:
        yield wave


def _reasons(error: Any) -> list[dict[str, Any]]:
    """One reason per item, in the order of the items."""
    return list(error.response.get("CancellationReasons", ()))


def _rejection(error: Any) -> str | None:
    """The reason why DynamoDB rejected an item and so canceled the transaction; None if no item was rejected."""
    if dynamodb_client.code_of(error) in ITEM_ERRORS:
        return dynamodb_client.reason_of(error)
    rejected = [reason for reason in _reasons(error) if reason.get("Code") in _REJECTED]
    return str(rejected[0].get("Message") or rejected[0]["Code"]) if rejected else None
