"""Runs on the executors: encodes rows as items and puts them into the table."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.connectors.dynamodb import client as dynamodb_client
from headrace.connectors.dynamodb import types
from headrace.connectors.shared.document_encoder import UnsupportedValue
from headrace.spark import tasks
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql.types import StructType

    from headrace.connectors.dynamodb.client import WriteUnitLimiter
    from headrace.connectors.shared.document_encoder import Nulls
    from headrace.connectors.shared.keyed_sink import Row

PK = "pk"
"""The key of a table without a business key: the id of the record that the row came from."""
SOURCE, VERSION, DELETED, EXPIRES = "headrace_source", "headrace_version", "headrace_deleted", "headrace_expires"
_NOT_NEWER = f"attribute_not_exists({SOURCE}) OR {SOURCE} <> :source OR {VERSION} <= :version"
_BATCH, PARALLEL_REQUESTS = 25, 8
# Errors that concern one item, not the request or the table.
ITEM_ERRORS = frozenset({"ValidationException", "ItemCollectionSizeLimitExceededException"})


@dataclass(frozen=True, slots=True)
class DynamoDBTarget:
    """The table. `units`: write units per second that this task may use."""

    table: str
    region: str | None
    endpoint: str | None
    units: float | None

    def client(self) -> Any:
        where = (self.region, self.endpoint)
        return tasks.worker_cached(("dynamodb", *where), lambda: dynamodb_client.connect(*where))

    def limiter(self) -> WriteUnitLimiter | None:
        units = self.units
        if units is None:
            return None
        key = ("dynamodb limiter", self.table, self.region, self.endpoint, units)
        return tasks.worker_cached(key, lambda: dynamodb_client.WriteUnitLimiter(units), close=lambda limiter: None)  # type: ignore[no-any-return]


class Put(NamedTuple):
    """An item that replaces the one with its key; if `deleted` and without a source, it removes that item."""

    row: Row
    item: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DynamoDBWriter:
    """Stores rows with this schema, which has exactly the stored columns.

    `indexed` are the key columns of indexes, for which DynamoDB accepts no NULL. The marker of a deleted item expires
    after `keep_seconds`.
    """

    target: DynamoDBTarget
    sink: str
    schema: StructType
    key: tuple[str, ...]
    by_origin: bool
    indexed: frozenset[str]
    nulls: Nulls
    keep_seconds: int

    def __call__(self, rows: Sequence[Row]) -> list[tuple[Row, str]]:
        rejected: list[tuple[Row, str]] = []
        puts: list[Put] = []
        encoders = self.encoders()
        for row in rows:
            try:
                puts.append(self.put(row, encoders))
            except UnsupportedValue as error:
                rejected.append((row, str(error)))
        with dynamodb_client.translate_error(self.sink):
            if self.by_origin:
                for first in range(0, len(puts), _BATCH):
                    rejected += self._put_batch(puts[first : first + _BATCH])
            else:
                rejected += self._put_each(puts)
        return rejected

    def encoders(self) -> dict[str, Callable[[Any], Any]]:
        encoder = types.document_encoder()
        return {field.name: encoder.encoder_for(field.dataType, self.nulls) for field in self.schema.fields}

    def put(self, row: Row, encoders: Mapping[str, Callable[[Any], Any]]) -> Put:
        """Encode a row. UnsupportedValue if a value cannot be stored."""
        return Put(row, self._item(row, encoders))

    def _item(self, row: Row, encoders: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
        if self.by_origin:
            assert row.origin is not None
            key = {PK: {"S": f"{row.origin.topic}:{row.origin.partition}:{row.origin.offset}"}}
        else:
            key = {name: encoders[name](value) for name, value in zip(self.key, row.key, strict=True)}
        guard: dict[str, Any] = {}
        if row.source is not None:
            guard = {SOURCE: {"S": row.source}, VERSION: {"N": str(row.version)}}
        if row.deleted:
            expires = int(time.time()) + self.keep_seconds
            return {**key, **guard, DELETED: {"BOOL": True}, EXPIRES: {"N": str(expires)}}
        fields = types.document_encoder().fields(encoders, row.values, self.nulls)
        stored = {name: value for name, value in fields.items() if name not in self.indexed or "NULL" not in value}
        return {**stored, **key, **guard}

    def _put_batch(self, puts: Sequence[Put]) -> list[tuple[Row, str]]:
        """Send all puts in one request and repeat unprocessed ones. If the service rejects an item, send them one by
        one to find it."""
        errors = require("botocore.exceptions", extra="dynamodb")
        table = self.target.table
        client, limiter = self.target.client(), self.target.limiter()
        remaining: dict[str, Any] = {table: [{"PutRequest": {"Item": put.item}} for put in puts]}

        def attempt() -> bool:
            nonlocal remaining
            if limiter:
                limiter.wait()
            answer = client.batch_write_item(RequestItems=remaining, ReturnConsumedCapacity="TOTAL")
            if limiter:
                limiter.spend(sum(used["CapacityUnits"] for used in answer.get("ConsumedCapacity", ())))
            remaining = answer.get("UnprocessedItems") or {}
            return not remaining

        try:
            dynamodb_client.write_until_done(attempt, self.sink)
        except errors.ClientError as error:
            if dynamodb_client.code_of(error) not in ITEM_ERRORS:
                raise
            return self._put_each(puts)
        return []

    def _put_each(self, puts: Sequence[Put]) -> list[tuple[Row, str]]:
        if not puts:
            return []
        client, limiter = self.target.client(), self.target.limiter()  # shared: both are thread-safe
        with ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="headrace-dynamodb") as pool:
            reasons = list(pool.map(lambda put: self.write_item(client, limiter, put), puts))
        return [(put.row, reason) for put, reason in zip(puts, reasons, strict=True) if reason is not None]

    def write_item(self, client: Any, limiter: WriteUnitLimiter | None, put: Put) -> str | None:
        """Store or delete one item. Returns the reason if DynamoDB rejects it, else None."""
        errors = require("botocore.exceptions", extra="dynamodb")
        if put.row.deleted and put.row.source is None:
            call = client.delete_item
            request = {"TableName": self.target.table, "Key": {name: put.item[name] for name in self.key}}
        else:
            call = client.put_item
            request = self.request(put)

        def attempt() -> bool:
            if limiter:
                limiter.wait()
            answer = call(**request, ReturnConsumedCapacity="TOTAL")
            if limiter:
                limiter.spend(answer.get("ConsumedCapacity", {}).get("CapacityUnits", 1))
            return True

        try:
            dynamodb_client.write_until_done(attempt, self.sink)
        except errors.ClientError as error:
            if dynamodb_client.code_of(error) in ITEM_ERRORS:
                return dynamodb_client.reason_of(error)
            if dynamodb_client.code_of(error) != "ConditionalCheckFailedException":  # this code: a newer item exists
                raise
        return None

    def request(self, put: Put) -> dict[str, Any]:
        """The request that stores an item unless a newer one exists."""
        request: dict[str, Any] = {"TableName": self.target.table, "Item": put.item}
        if put.row.source is not None:
            request["ConditionExpression"] = _NOT_NEWER
            request["ExpressionAttributeValues"] = {":source": put.item[SOURCE], ":version": put.item[VERSION]}
        return request
