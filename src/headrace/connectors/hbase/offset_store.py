"""Offsets in HBase, through its Thrift gateway: one cell per pipeline, replaced by checkAndPut."""

from __future__ import annotations

import copy
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from headrace.connectors.hbase.client import Gateway, ReconnectingConnection
from headrace.core.offset_store import DocumentStore
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.core.offset_store import Heartbeats

_FAMILY = "offsets"
_COLUMN = f"{_FAMILY}:document".encode()


class HBase(DocumentStore):
    """Any number of pipelines in one table, which is created if it does not exist. `thrift` is "host:port".

    While HBase is down, a gateway repeats a change for minutes. If Headrace has stopped waiting for a change and the
    gateway applies it later, the run stops with OffsetConflict. Nothing is lost: start the run again.
    """

    driver = ("happybase", "hbase")

    def __init__(self, thrift: str, *, table: str = "headrace") -> None:
        self._gateway = Gateway.of(thrift)
        self._table = table
        self._pipeline = ""
        self._opened = False
        self._connection = ReconnectingConnection(self._gateway)

    @property
    def identity(self) -> str:
        return f"stores.HBase('{self._gateway}', table={self._table!r})"

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        self._opened = True
        with self._connect() as connection:
            if self._table.encode() not in connection.tables():
                already_exists = require("Hbase_thrift", extra="hbase").AlreadyExists
                with suppress(already_exists):  # another run created it first
                    connection.create_table(self._table, {_FAMILY: {"max_versions": 1}})
        return self

    def open_for_reading(self, pipeline: str) -> str | None:
        self._pipeline = pipeline
        self._opened = True
        with self._connect() as connection:
            exists = self._table.encode() in connection.tables()
        if exists:
            return None
        self.close()
        return f"{self!r}: there is no table {self._table}"

    def close(self) -> None:
        self._opened = False
        self._connection.close()

    def heartbeat_handle(self) -> Heartbeats:
        other = copy.copy(self)
        other._connection = ReconnectingConnection(self._gateway)
        return other

    def get(self) -> tuple[str | None, Any]:
        with self._connect() as connection:
            found = connection.table(self._table).row(self._pipeline.encode(), columns=[_COLUMN]).get(_COLUMN)
        return (None if found is None else found.decode()), found

    def put(self, text: str, version: Any) -> bool:
        with self._connect() as connection:
            mutation = require("Hbase_thrift", extra="hbase").Mutation(column=_COLUMN, value=text.encode())
            # The stored text is the version; None requires that there is no text.
            row = self._pipeline.encode()
            return bool(connection.client.checkAndPut(self._table.encode(), row, _COLUMN, version, mutation, {}))

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        self.require_open(self._opened or None)
        with self._connection.connect(
            self, f"the table needs a column family {_FAMILY}, and the gateway rights to it"
        ) as connection:
            yield connection
