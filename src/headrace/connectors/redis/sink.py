"""The Redis sink: a hash or string per key, or entries of a stream, list or set."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from headrace.connectors.redis import client as server
from headrace.connectors.redis.types import converters
from headrace.connectors.redis.writer import MAX_TTL, AddTask, AppendTask, RedisTarget, RedisWriter
from headrace.connectors.shared import log_order
from headrace.connectors.shared.keyed_sink import KeyedSink, RowKey
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.spark import tasks
from headrace.spark.origin_columns import stored_schema
from headrace.support.crashpoints import reach
from headrace.support.optional_imports import require
from headrace.support.redaction import masked
from headrace.support.validation import check_choice, check_positive, check_whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.connectors.shared.keyed_sink import Writer
    from headrace.spark.tasks import Report
    from headrace.types import Batch

Structure = Literal["hash", "string", "stream", "list", "set"]
_OPTIONS = {
    "hash": {"key", "deleted", "ttl", "keep_deleted"},
    "string": {"key", "deleted", "ttl", "keep_deleted"},
    "stream": {"maxlen", "origin"},
    "list": {"maxlen"},
    "set": {"member"},
}
_MAX_ENTRIES = 2**63 - 1
_WEEK = 7 * 24 * 3600.0


class Redis(KeyedSink):
    """Writes rows to one server, under `name`.

    `structure`: a "hash" (its fields are the columns) or a "string" (the row as JSON) per row, at `name:key`; or
    entries appended to the "stream" or "list" `name`, or members of the "set" `name`. A repeated batch adds nothing
    twice: rows with a key are written again under the same key, and a guard records what was appended to a stream or
    list.

    `ttl` is a number of seconds, or a column with the seconds. For `keep_deleted` seconds the guard of a deleted row
    keeps out older versions. A stream or list is trimmed to `maxlen` entries. `origin` names a field for the source
    record in the entries of a stream. `member` is the column to add to a set; without it, the row as JSON.
    """

    driver = ("redis", "redis")

    def __init__(
        self,
        url: str,
        name: str,
        *,
        structure: Structure = "hash",
        key: str | Sequence[str] | None = None,
        deleted: str | None = None,
        ttl: float | str | None = None,
        keep_deleted: float | None = None,
        maxlen: int | None = None,
        origin: str | None = None,
        member: str | None = None,
    ) -> None:
        server.check_url(url, 'sinks.Redis("redis://localhost:6379/0", "users", key="id")')
        if not isinstance(name, str) or not name or set(name) & set("{}") or name.startswith("headrace:"):
            raise ConfigError(
                f"expected a name without braces that does not begin with headrace:, got {name!r}", hint='"users"'
            )
        check_choice("structure", structure, get_args(Structure))
        options = {"key": key, "deleted": deleted, "ttl": ttl, "keep_deleted": keep_deleted}
        options |= {"maxlen": maxlen, "origin": origin, "member": member}
        given = {option for option, value in options.items() if value is not None}
        if unknown := sorted(given - _OPTIONS[structure]):
            known = ", ".join(sorted(_OPTIONS[structure]))
            raise ConfigError(f"{unknown[0]}= has no effect with structure={structure!r}", hint=f"its options: {known}")
        if ttl is not None and not isinstance(ttl, str):
            check_positive("ttl", ttl, maximum=MAX_TTL, unit="seconds", hint="ttl=3600")
        if keep_deleted is not None:
            check_positive("keep_deleted", keep_deleted, maximum=MAX_TTL, unit="seconds", hint="keep_deleted=3600")
        if maxlen is not None:
            check_whole_number("maxlen", maxlen, maximum=_MAX_ENTRIES, unit="entries", hint="maxlen=3600")
        super().__init__(RowKey.of(key, deleted))
        self._target = RedisTarget(url, name, f"sinks.Redis({masked(url)!r}, {name!r}, structure={structure!r})")
        self._structure = structure
        self._ttl = ttl
        self._keep_deleted = _WEEK if keep_deleted is None else keep_deleted
        self._maxlen, self._origin, self._member = maxlen, origin, member
        self._pipeline = ""

    @property
    def identity(self) -> str:
        return self._target.sink

    def open(self, pipeline: str) -> Self:
        redis = require("redis", extra="redis")
        self._pipeline = pipeline
        with self._target.client() as client:
            client.ping()
            info: dict[str, Any] = {}
            with suppress(redis.exceptions.NoPermissionError):  # then writing rows reports a cluster
                info = client.info("cluster")
        if info.get("cluster_enabled"):
            raise ConfigError(
                f"{self!r}: the server is a node of a cluster, which is not supported",
                hint="name a server that is not in a cluster",
            )
        return super().open(pipeline)

    @property
    def identity_columns(self) -> Sequence[str] | None:
        match self._structure:
            case "set":
                return None if self._member is None else (self._member,)
            case "stream" | "list":
                return ()  # appended by offset
            case _:
                return super().identity_columns

    def close(self) -> None:
        super().close()
        tasks.evict(("redis", self._target.url))

    def prepare(self, schema: StructType) -> None:
        self._converters(schema)
        if self._structure in ("stream", "list") and METADATA not in schema.names:
            raise log_order.origin_required_error()
        for name in (self._member, self._ttl):
            if isinstance(name, str) and name not in stored_schema(schema).names:
                raise ConfigError(f"{self!r}: the rows have no column {name}", hint=f"rows: {schema.names}")
        if isinstance(self._ttl, str):
            _numeric(self._ttl, schema)

    def check_target(self, schema: StructType) -> None:
        with self.open(self._pipeline):  # only reads the server's info
            self.prepare(schema)

    def describe_write(self, rows: DataFrame, *, cached: bool) -> str | None:
        if self._structure == "set":
            return "rows are added to a set: adding a row twice has no effect"
        if self._structure in ("stream", "list"):
            return f"rows are appended to a {self._structure} by offset, with a guard per partition"
        return super().describe_write(rows, cached=cached)

    def _writer(self, batch: Batch, schema: StructType) -> Writer:
        return RedisWriter(
            self._target,
            self._structure,
            self._identity.key,
            self._converters(schema),
            not self._identity.by_origin(schema.names),
            self._ttl,
            self._keep_deleted,
        )

    def _converters(self, schema: StructType) -> dict[str, Callable[[Any], Any]]:
        if self._structure in ("hash", "string"):
            return converters(self._identity.types(schema))
        return converters({field.name: field.dataType for field in stored_schema(schema).fields})

    def _write_rows(self, batch: Batch, rows: DataFrame, limit: int | None) -> list[Report]:
        self.prepare(rows.schema)
        if self._structure in ("hash", "string"):
            return super()._write_rows(batch, rows, limit)
        reports = self._add(rows, limit) if self._structure == "set" else self._append(batch, rows, limit)
        reach("redis: rows written")
        return reports

    def _append(self, batch: Batch, rows: DataFrame, limit: int | None) -> list[Report]:
        task = AppendTask(
            self._target,
            self._structure,
            self._pipeline,
            self._converters(rows.schema),
            batch.ranges,
            dict(batch.topic_ids),
            batch.epoch,
            self._maxlen,
            self._origin,
            limit,
        )
        return tasks.run(log_order.sort_by_offset(batch, rows).drop(METADATA), task)

    def _add(self, rows: DataFrame, limit: int | None) -> list[Report]:
        task = AddTask(self._target, self._converters(rows.schema), self._member, limit)
        return tasks.run(log_order.with_origin_columns(rows).drop(METADATA), task)


def _numeric(name: str, schema: StructType) -> None:
    from pyspark.sql.types import NumericType

    if not isinstance(schema[name].dataType, NumericType):
        shown = schema[name].dataType.simpleString()
        raise ConfigError(f"ttl={name!r}: that column is {shown}", hint="a number of seconds, NULL for no expiry")
