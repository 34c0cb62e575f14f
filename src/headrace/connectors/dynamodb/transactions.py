"""Writes all rows of a record in one DynamoDB transaction: readers see all of them or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.connectors.dynamodb import client as dynamodb_client
from headrace.connectors.dynamodb.writer import AT_ONCE, OF_ITEM
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

MOST = 100
_WAVE = 64
_OVERTAKEN = "ConditionalCheckFailed"
_REFUSED = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})
_PASSING = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})


class _Record(NamedTuple):
    origin: RecordId
    puts: Sequence[Put]

    @property
    def keys(self) -> set[Any]:
        return {put.row.key for put in self.puts}


@dataclass(frozen=True, slots=True)
class ByRecord:
    """Writes the rows of a task in the order of the log. `limit` records may be rejected; None: none."""

    items: DynamoDBWriter
    limit: int | None

    def __call__(self, batches: Iterator[Any]) -> Report:
        rejected = RejectedRows(self.items.sink, self.limit)
        stored = 0
        client, pace = self.items.target.client(), self.items.target.pace()  # shared: both are thread-safe
        with (
            dynamodb_client.translate_error(self.items.sink),
            ThreadPoolExecutor(AT_ONCE, thread_name_prefix="headrace-dynamodb") as pool,
        ):
            for wave in _waves(self._records(batches, rejected)):
                said = list(pool.map(lambda record: self._write(client, pace, record), wave))
                for record, reason in zip(wave, said, strict=True):
                    if reason is None:
                        stored += len(record.puts)
                    else:
                        rejected.add(record.origin, reason)
        return Report(stored, refused=rejected.rows)

    def _records(self, batches: Iterator[Any], rejected: RejectedRows) -> Iterator[_Record]:
        """The records whose rows can all be stored."""
        encoders = self.items.encoders()
        for origin, found in log_order.group_by_record(batches, rejected):
            if any(rejected == origin for rejected, _ in rejected.rows):  # one of its rows could not be read
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
        rows = {row.key: row for row in (row_of(origin, values, self.items.key) for values in found)}
        if len(rows) > MOST:
            raise UnsupportedValue(
                f"expected {MOST} rows of one record at most, which is what a transaction takes, got {len(rows)}"
            )
        for row in rows.values():
            if None in row.key:
                raise UnsupportedValue(null_in_key(row, self.items.key))
        return [self.items.put(row, encoders) for row in rows.values()]

    def _write(self, client: Any, pace: WriteUnitLimiter | None, record: _Record) -> str | None:
        """Store a record. Returns the reason if DynamoDB rejects it, else None."""
        if len(record.puts) == 1:  # a transaction costs twice as much
            return self.items.one(client, pace, record.puts[0])
        errors = require("botocore.exceptions", extra="dynamodb")
        left = record.puts

        def attempt() -> bool:
            nonlocal left
            if pace:
                pace.wait()
            operations = [{"Put": self.items.request(put)} for put in left]
            try:
                answer = client.transact_write_items(TransactItems=operations, ReturnConsumedCapacity="TOTAL")
            except client.exceptions.TransactionCanceledException as error:
                codes = [reason.get("Code") for reason in _reasons(error)]
                # A newer item only prevents the put of its own key; still store the other items of this record.
                left = [put for put, code in zip(left, codes, strict=True) if code != _OVERTAKEN]
                if left and not {_OVERTAKEN, *_PASSING} & set(codes):
                    raise
                return not left
            if pace:
                pace.spent(sum(spent["CapacityUnits"] for spent in answer.get("ConsumedCapacity", ())))
            return True

        try:
            dynamodb_client.write_until_done(attempt, self.items.sink)
        except errors.ClientError as error:
            if (reason := _refusal(error)) is None:
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


def _refusal(error: Any) -> str | None:
    """The reason why DynamoDB rejected an item and so canceled the transaction; None if no item was rejected."""
    if dynamodb_client.code_of(error) in OF_ITEM:
        return dynamodb_client.reason_of(error)
    rejected = [reason for reason in _reasons(error) if reason.get("Code") in _REFUSED]
    return str(rejected[0].get("Message") or rejected[0]["Code"]) if rejected else None
