"""The DynamoDB sink: one item per record, or the newest value of each business key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.dynamodb import client
from headrace.connectors.dynamodb import types as dynamodb_types
from headrace.connectors.dynamodb.transactions import WriteRecordsTask
from headrace.connectors.dynamodb.writer import EXPIRES, PK, DynamoDBTarget, DynamoDBWriter
from headrace.connectors.shared import log_order
from headrace.connectors.shared.document_encoder import check_nulls
from headrace.connectors.shared.keyed_sink import KeyedSink, RowKey
from headrace.core.sink import METADATA
from headrace.errors import ConfigError, RetriableError
from headrace.spark import task_alignment, tasks
from headrace.support.crashpoints import reach
from headrace.support.polling import wait_until
from headrace.support.validation import check_choice, check_positive, column_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.spark.tasks import Report
    from headrace.types import Batch

ON_DEMAND = "on-demand"
_CREATE_SECONDS = 120.0
_STREAMS = ("keys-only", "new-image", "old-image", "new-and-old-images")
_CLASSES = ("standard", "standard-infrequent-access")


class DynamoDB(KeyedSink):
    """Stores rows as items of one table. `key` is the partition key, or the partition key and the sort key. With
    `transactions` all rows of one record are stored in one transaction.

    The other options apply to a table that the sink creates: `billing` ("on-demand", or {"rcu": 5, "wcu": 5}),
    `indexes` (the key columns of each index, by its name), `stream`, `sse`, `table_class`.
    """

    driver = ("boto3", "dynamodb")

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        key: str | Sequence[str] | None = None,
        deleted: str | None = None,
        nulls: str = "omit",
        transactions: bool = False,
        write_units_per_second: float | None = None,
        keep_deleted_days: float = 7,
        create: bool = False,
        billing: str | Mapping[str, int] = ON_DEMAND,
        indexes: Mapping[str, str | Sequence[str]] | None = None,
        stream: str | None = None,
        sse: bool = False,
        table_class: str | None = None,
    ) -> None:
        super().__init__(RowKey.of(key, deleted))
        if not isinstance(table, str) or len(table) < 3:
            raise ConfigError(
                f"expected the name of a table, at least 3 letters, got {table!r}", hint='sinks.DynamoDB("orders")'
            )
        if key is not None and len(self._identity.key) > 2:
            raise ConfigError(
                f"key={key!r}: expected a partition key, or a partition key and a sort key",
                hint="join columns in the transform: concat_ws('#', …)",
            )
        if transactions and self._identity.is_record_id:
            raise ConfigError(
                "transactions=True: several rows of a record need a key", hint='key=("order", "position")'
            )
        if write_units_per_second is not None:
            check_positive("write_units_per_second", write_units_per_second, hint="write_units_per_second=5")
        check_positive("keep_deleted_days", keep_deleted_days, hint="keep_deleted_days=7")
        if stream is not None:
            check_choice("stream", stream, _STREAMS)
        if table_class is not None:
            check_choice("table_class", table_class, _CLASSES)
        if not create and (indexes or stream or sse or table_class or billing != ON_DEMAND):
            raise ConfigError(
                "billing=, indexes=, stream=, sse= and table_class= are for a new table",
                hint="create=True, or leave them out",
            )
        self._table, self._region, self._endpoint = table, region, endpoint
        self._nulls = check_nulls(nulls)
        self._transactions = transactions
        self._units = write_units_per_second
        self._keep_seconds = int(keep_deleted_days * 86_400)
        self._create = create
        self._throughput = _throughput(billing)
        self._indexes = {name: column_names(f"indexes: {name}", on) for name, on in (indexes or {}).items()}
        for on in self._indexes.values():
            _key_schema(on)  # or ConfigError
        self._stream, self._sse, self._class = stream, sse, table_class
        self._client: Any = None
        self._indexed: frozenset[str] = frozenset()
        self._tasks = 1

    @property
    def identity(self) -> str:
        where = (self._endpoint and f", endpoint={self._endpoint!r}") or (self._region and f", region={self._region!r}")
        return f"sinks.DynamoDB({self._table!r}{where or ''})"

    def open(self, pipeline: str) -> Self:
        self._client = client.connect(self._region, self._endpoint)
        self._describe_table()
        return super().open(pipeline)

    def close(self) -> None:
        super().close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def prepare(self, schema: StructType) -> None:
        key, kinds = self._expected_schema(schema)
        found = self._ensure_table(key, kinds)
        self._check_table(found, key, kinds)
        if self._create and not self._identity.by_origin(schema.names):
            self._enable_expiry()
        self._indexed = _index_attributes(found)

    def check_target(self, schema: StructType) -> None:
        key, kinds = self._expected_schema(schema)
        with self.open(""):
            if (found := self._describe_table()) is not None:
                self._check_table(found, key, kinds)
            elif not self._create:
                raise self._missing_table_error()

    def _expected_schema(self, schema: StructType) -> tuple[list[str], dict[str, dict[str, str]]]:
        """The key of the table and the types of key and index columns. ConfigError if rows cannot be items."""
        if self._transactions and METADATA not in schema.names:
            raise log_order.origin_required_error()
        stored = self._stored_schema(schema)
        dynamodb_types.document_encoder().check(stored, self)
        by_origin = self._identity.by_origin(schema.names)
        if by_origin and PK in stored.names:
            raise ConfigError(
                f"{self!r}: the column name {PK} is reserved by Headrace", hint="rename it in the transform"
            )
        key = [PK] if by_origin else list(self._identity.key)
        names = dict.fromkeys([*key, *sum(self._indexes.values(), ())])
        return key, {name: self._attribute(stored, name) for name in names}

    def _ensure_table(self, key: Sequence[str], kinds: Mapping[str, dict[str, str]]) -> Any:
        """Return the table when it accepts writes; create it first if it does not exist and `create` is set."""
        found = self._describe_table()
        if found is None:
            if not self._create:
                raise self._missing_table_error()
            self._create_table(key, kinds)
            reach("dynamodb: table made")

        def ready() -> Any:
            table = self._describe_table()
            return None if table is None or table["TableStatus"] == "CREATING" else table

        if (table := wait_until(ready, _CREATE_SECONDS, 0.5)) is None:
            raise RetriableError(f"{self!r} was not ready within {_CREATE_SECONDS:.0f} s")
        return table

    def _missing_table_error(self) -> ConfigError:
        return ConfigError(
            f"{self!r}: there is no such table", hint="create=True makes it, or correct its name or the region"
        )

    def _write_rows(self, batch: Batch, rows: DataFrame, limit: int | None) -> list[Report]:
        cores = rows.sparkSession.sparkContext.defaultParallelism
        ranges = len(batch.ranges)
        by_range = self._transactions or task_alignment.tasks_match_ranges(rows, ranges)
        self._tasks = min(cores, ranges) if by_range else cores
        if not self._transactions:
            return super()._write_rows(batch, rows, limit)
        frame = log_order.sort_by_origin_columns(batch, self._identity.frame(batch, rows))
        reports = tasks.run(frame, WriteRecordsTask(self._writer(batch, rows.schema), limit))
        reach("dynamodb: rows written")
        return reports

    def _writer(self, batch: Batch, schema: StructType) -> DynamoDBWriter:
        self.ensure_prepared(schema)
        # Each task gets an equal share, because tasks do not know each other's use.
        units = None if self._units is None else self._units / max(self._tasks, 1)
        return DynamoDBWriter(
            DynamoDBTarget(self._table, self._region, self._endpoint, units),
            repr(self),
            self._stored_schema(schema),
            self._identity.key,
            self._identity.by_origin(schema.names),
            self._indexed,
            self._nulls,
            self._keep_seconds,
        )

    def _attribute(self, schema: StructType, name: str) -> dict[str, str]:
        if name == PK and PK not in schema.names:
            return {"AttributeName": PK, "AttributeType": "S"}
        return dynamodb_types.attribute(schema, name, self)

    def _describe_table(self) -> Any:
        """None if the table does not exist."""
        dynamodb = self.require_open(self._client)
        with client.translate_error(repr(self)):
            try:
                return dynamodb.describe_table(TableName=self._table)["Table"]
            except dynamodb.exceptions.ResourceNotFoundException:
                return None

    def _create_table(self, key: Sequence[str], kinds: Mapping[str, dict[str, str]]) -> None:
        request: dict[str, Any] = {
            "TableName": self._table,
            "KeySchema": _key_schema(key),
            "AttributeDefinitions": list(kinds.values()),
            "BillingMode": "PROVISIONED" if self._throughput else "PAY_PER_REQUEST",
            **self._throughput,
        }
        if self._indexes:
            request["GlobalSecondaryIndexes"] = [
                {
                    "IndexName": name,
                    "KeySchema": _key_schema(on),
                    "Projection": {"ProjectionType": "ALL"},
                    **self._throughput,
                }
                for name, on in self._indexes.items()
            ]
        if self._stream:
            view = self._stream.replace("-", "_").upper()
            request["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": view}
        if self._sse:
            request["SSESpecification"] = {"Enabled": True}
        if self._class:
            request["TableClass"] = self._class.replace("-", "_").upper()
        with client.translate_error(repr(self)):
            try:
                self._client.create_table(**request)
            except self._client.exceptions.ResourceInUseException:
                return  # another run created it first

    def _enable_expiry(self) -> None:
        """A table has at most one attribute for this; if it already uses another one, leave that unchanged."""
        with client.translate_error(repr(self)):
            found = self._client.describe_time_to_live(TableName=self._table)["TimeToLiveDescription"]
            if found["TimeToLiveStatus"] == "DISABLED":
                self._client.update_time_to_live(
                    TableName=self._table, TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRES}
                )

    def _check_table(self, table: Mapping[str, Any], key: Sequence[str], kinds: Mapping[str, dict[str, str]]) -> None:
        types = {found["AttributeName"]: found["AttributeType"] for found in table["AttributeDefinitions"]}
        actual = [(found["AttributeName"], types[found["AttributeName"]]) for found in table["KeySchema"]]
        expected = [(name, kinds[name]["AttributeType"]) for name in key]
        if actual != expected:
            raise ConfigError(
                f"the rows do not fit {self!r}: its key is {_key_text(actual)}, that of the rows {_key_text(expected)}",
                hint="give the columns of the table's key as key=, or choose another table",
            )
        names = {index["IndexName"] for index in table.get("GlobalSecondaryIndexes", ())}
        if missing := [name for name in self._indexes if name not in names]:
            raise ConfigError(
                f"{self!r} exists, but has no index {missing[0]}",
                hint=f"aws dynamodb update-table --table-name {self._table} --global-secondary-index-updates …",
            )


def _throughput(billing: str | Mapping[str, int]) -> dict[str, Any]:
    if billing == ON_DEMAND:
        return {}
    if isinstance(billing, str) or set(billing) != {"rcu", "wcu"}:
        raise ConfigError(f"billing={billing!r} is unknown", hint='"on-demand", or {"rcu": 5, "wcu": 5}')
    return {"ProvisionedThroughput": {"ReadCapacityUnits": billing["rcu"], "WriteCapacityUnits": billing["wcu"]}}


def _key_schema(names: Sequence[str]) -> list[dict[str, str]]:
    kinds = ("HASH", "RANGE")
    if not 0 < len(names) <= len(kinds):
        raise ConfigError(
            f"expected one or two columns of an index, got {list(names)!r}", hint='"page", or ("page", "time")'
        )
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, kinds, strict=False)]


def _index_attributes(table: Mapping[str, Any]) -> frozenset[str]:
    indexes = [*table.get("GlobalSecondaryIndexes", ()), *table.get("LocalSecondaryIndexes", ())]
    return frozenset(column["AttributeName"] for index in indexes for column in index["KeySchema"])


def _key_text(key: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in key)
