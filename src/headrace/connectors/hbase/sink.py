"""The HBase sink, through the Thrift gateway: one row per record, or the newest value of each business key."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.hbase.client import Gateway, ReconnectingConnection
from headrace.connectors.hbase.types import check
from headrace.connectors.hbase.writer import HBaseWriter
from headrace.connectors.shared.keyed_sink import KeyedSink, RowKey
from headrace.connectors.shared.topic_generations import refuse_unversioned, topic_generation
from headrace.core.sink import METADATA
from headrace.errors import ConfigError
from headrace.spark.origin_columns import stored_schema
from headrace.support.optional_imports import require
from headrace.support.validation import check_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import DataType, StructType

    from headrace.connectors.shared.keyed_sink import Writer
    from headrace.types import Batch

_FIRST_GENERATION = 16
"""For 500 years, the timestamps of this and later generations are above HBase's own, which are milliseconds. With lower
ones, a row that a user deletes manually would hide all later writes to it."""
_FOREVER = 2**31 - 1
_TOPICS, _TOPICS_FAMILY = "headrace_topics", "d"
_TOPICS_COLUMN = b"d:topics"


class HBase(KeyedSink):
    """Writes rows to `table` from the executors: a cell `family:column` for each value that is not NULL.

    The row key consists of the columns of `key`: by default topic, partition and offset of the record. Cells under
    other keys have the source offset as their timestamp, so that an older value never replaces a newer one. `thrift` is
    "host:port". `create=True` creates the table.
    """

    driver = ("happybase", "hbase")

    by_offset = True

    def __init__(
        self,
        thrift: str,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        family: str = "d",
        deleted: str | None = None,
        create: bool = False,
    ) -> None:
        super().__init__(RowKey.of(key, deleted))
        check_text("table", table, hint='table="clicks", or "namespace:clicks"')
        if not isinstance(family, str) or not family or ":" in family:
            raise ConfigError(f"expected the name of a column family, got family={family!r}", hint='family="d"')
        self._gateway = Gateway.of(thrift)
        self._table = table
        self._family = family
        self._create = create
        self._opened = False
        self._connection = ReconnectingConnection(self._gateway)
        self._types: dict[str, DataType] = {}
        self._time_to_live = _FOREVER

    @property
    def identity(self) -> str:
        return f"sinks.HBase('{self._gateway}', {self._table!r})"

    def open(self, pipeline: str) -> Self:
        self._opened = True
        with self._connect() as connection:
            connection.tables()
        return super().open(pipeline)

    def close(self) -> None:
        super().close()
        self._opened = False
        self._connection.close()

    def check_target(self, schema: StructType) -> None:
        check(stored_schema(schema))
        self._identity.types(schema)
        with self.open(""), self._connect() as connection:
            if self._table.encode() in connection.tables():
                self._read_families(connection)
            elif not self._create:
                raise self._missing_table_error()

    def prepare(self, schema: StructType) -> None:
        check(stored_schema(schema))
        self._types = self._identity.types(schema)
        with self._connect() as connection:
            if self._table.encode() not in connection.tables():
                self._create_table(connection)
            families = self._read_families(connection)
        self._time_to_live = families[self._family.encode()]["time_to_live"]

    def _read_families(self, connection: Any) -> Any:
        """The column families of the table. ConfigError if it cannot be written to."""
        if not connection.is_table_enabled(self._table):
            raise ConfigError(f"{self!r}: the table is disabled", hint=f"in HBase's shell: enable '{self._table}'")
        families = connection.table(self._table).families()
        if self._family.encode() not in families:
            known = ", ".join(sorted(name.decode() for name in families))
            raise ConfigError(
                f"{self!r}: the table has no column family {self._family}; it has: {known}",
                hint=f'family="{known.split(", ")[0]}"; or in HBase\'s shell: alter {self._table!r}, {self._family!r}',
            )
        return families

    def _writer(self, batch: Batch, schema: StructType) -> Writer:
        self.ensure_prepared(schema)
        by_origin = self._identity.by_origin(schema.names)
        return HBaseWriter(
            sink=repr(self),
            gateway=self._gateway,
            table=self._table,
            family=self._family,
            types=self._types,
            key=self._identity.key,
            generation=None if by_origin else self._topic_generation(batch, schema),
            replacing=not by_origin,
            rights=self._rights,
        )

    def _topic_generation(self, batch: Batch, schema: StructType) -> int | None:
        with self._connect() as connection:
            if _TOPICS.encode() not in connection.tables():
                with suppress(require("Hbase_thrift", extra="hbase").AlreadyExists):  # another run created it first
                    connection.create_table(_TOPICS, {_TOPICS_FAMILY: {"max_versions": 1}})
            if METADATA not in schema.names:
                refuse_unversioned(repr(self), self._read_topics(connection))
                return None
            if self._time_to_live not in (_FOREVER, -1):
                raise ConfigError(
                    f"{self!r}: cells of the family {self._family} expire after {self._time_to_live} seconds,"
                    " counted from their timestamps, which are source offsets here",
                    hint="a family without TTL, or leave out key=, so that rows are keyed by their records",
                )
            known, swap = partial(self._read_topics, connection), partial(self._swap_topics, connection)
            return topic_generation(batch, repr(self), known, swap, first=_FIRST_GENERATION)

    def _read_topics(self, connection: Any) -> str | None:
        found = connection.table(_TOPICS).row(self._table.encode(), columns=[_TOPICS_COLUMN])
        return found[_TOPICS_COLUMN].decode() if found else None

    def _swap_topics(self, connection: Any, old: str | None, new: str) -> bool:
        mutation = require("Hbase_thrift", extra="hbase").Mutation(column=_TOPICS_COLUMN, value=new.encode())
        row, before = self._table.encode(), old.encode() if old is not None else None
        return bool(connection.client.checkAndPut(_TOPICS.encode(), row, _TOPICS_COLUMN, before, mutation, {}))

    def _create_table(self, connection: Any) -> None:
        if not self._create:
            raise self._missing_table_error()
        with suppress(require("Hbase_thrift", extra="hbase").AlreadyExists):
            connection.create_table(self._table, {self._family: {"max_versions": 1}})

    def _missing_table_error(self) -> ConfigError:
        shell = f"create '{self._table}', {{NAME => '{self._family}', VERSIONS => 1}}"
        return ConfigError(
            f"{self!r}: there is no such table", hint=f"create=True makes it; or in HBase's shell: {shell}"
        )

    @property
    def _rights(self) -> str:
        return f"the table needs a column family {self._family}, and the gateway rights to it"

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        self.require_open(self._opened or None)
        with self._connection.connect(self, self._rights) as connection:
            yield connection
