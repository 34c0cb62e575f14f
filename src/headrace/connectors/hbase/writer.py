"""Runs on the executors for the HBase sink: writes rows through the Thrift gateway."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connectors.hbase import client as thrift
from headrace.connectors.hbase.types import cell, row_key
from headrace.connectors.shared.topic_generations import NO_OFFSET, timestamp
from headrace.errors import RetriableError
from headrace.spark import tasks
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.types import DataType

    from headrace.connectors.hbase.client import Gateway
    from headrace.connectors.shared.keyed_sink import Row

_CONNECTIONS = 4
_CALL_BYTES = 4 * 2**20
_TOO_LARGE = "exceeds limit of"


@dataclass(frozen=True, slots=True)
class HBaseWriter:
    """Stores rows of one schema. `generation` is that of their topic; None if offsets are not versions.

    A gateway call has one timestamp for all its rows. So rows without versions share a call, and each row with a
    version needs its own, over several connections at a time. `replacing`: a NULL deletes the existing cell.
    """

    sink: str
    gateway: Gateway
    table: str
    family: str
    types: Mapping[str, DataType]
    key: tuple[str, ...]
    generation: int | None
    replacing: bool
    rights: str

    def __repr__(self) -> str:
        return self.sink

    def __call__(self, rows: Sequence[Row]) -> Sequence[tuple[Row, str]]:
        if not rows:
            return []
        cache_key = ("hbase", self.gateway)
        try:
            with thrift.translate_error(self, self.rights):
                clients: _Clients = tasks.worker_cached(cache_key, lambda: _Clients(self.gateway))
                if self.generation is None:
                    return self._write_batches(clients, rows)
                return clients.write_all(self._write_row, rows)
        except RetriableError:
            tasks.evict(cache_key)  # after a timeout the next response would be that of an earlier request
            raise

    def _write_batches(self, clients: _Clients, rows: Sequence[Row]) -> list[tuple[Row, str]]:
        module = require("Hbase_thrift", extra="hbase")
        rejected = []
        for chunk in self._chunks(rows):
            batch = [module.BatchMutation(row=self._row_key(row), mutations=mutations) for row, mutations in chunk]
            try:
                clients.first.mutateRows(self.table.encode(), batch, {})
            except module.IllegalArgument:  # the error of one row; HBase does not report which
                rejected += clients.write_all(self._write_row, [row for row, _ in chunk])
            except module.IOError as error:
                if _TOO_LARGE not in thrift.status_message(error):
                    raise
                rejected += clients.write_all(self._write_row, [row for row, _ in chunk])
        return rejected

    def _chunks(self, rows: Sequence[Row]) -> Iterator[list[tuple[Row, list[Any]]]]:
        """The rows in batches below the size limit of a call."""
        chunk: list[tuple[Row, list[Any]]] = []
        remaining = _CALL_BYTES
        for row in rows:
            mutations = self._mutations(row)
            chunk.append((row, mutations))
            remaining -= sum(len(mutation.column) + len(mutation.value or b"") for mutation in mutations)
            if remaining < 0:
                yield chunk
                chunk, remaining = [], _CALL_BYTES
        if chunk:
            yield chunk

    def _write_row(self, client: Any, row: Row) -> str | None:
        """Store one row. Returns the reason if HBase rejects it."""
        module = require("Hbase_thrift", extra="hbase")
        arguments = (self.table.encode(), self._row_key(row), self._mutations(row))
        try:
            if self.generation is None:
                client.mutateRow(*arguments, {})
            elif row.version is None:
                return NO_OFFSET
            else:
                client.mutateRowTs(*arguments, timestamp(self.generation, row.version), {})
        except module.IllegalArgument as error:
            return thrift.status_message(error)
        except module.IOError as error:
            if _TOO_LARGE not in thrift.status_message(error):
                raise
            return thrift.status_message(error)
        return None

    def _row_key(self, row: Row) -> bytes:
        return row_key([self.types[name] for name in self.key], row.key)

    def _mutations(self, row: Row) -> list[Any]:
        """A delete hides all values up to its timestamp. With the record's timestamp it hides older values and no
        later ones. The mutations of a record never both put and delete a column."""
        mutation = require("Hbase_thrift", extra="hbase").Mutation
        if row.deleted:
            return [mutation(isDelete=True, column=self.family.encode())]
        mutations = []
        for name, kind in self.types.items():
            column, value = f"{self.family}:{name}".encode(), row.values[name]
            if value is not None:
                mutations.append(mutation(column=column, value=cell(kind, value)))
            elif self.replacing:
                mutations.append(mutation(isDelete=True, column=column))
        return mutations


class _Clients:
    """A few connections, to write several rows at a time: the gateway handles the requests of a connection in turn."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._connections = [gateway.connect()]
        self._pool: ThreadPoolExecutor | None = None

    @property
    def first(self) -> Any:
        return self._connections[0].client

    def write_all(self, write: Callable[[Any, Row], str | None], rows: Sequence[Row]) -> list[tuple[Row, str]]:
        """`write` each row over one of the connections; return the rejected ones with the reasons."""
        while len(self._connections) < _CONNECTIONS:
            self._connections.append(self._gateway.connect())
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="headrace-hbase")

        def part(number: int) -> list[tuple[Row, str]]:
            client = self._connections[number].client
            results = ((row, write(client, row)) for row in rows[number::_CONNECTIONS])
            return [(row, reason) for row, reason in results if reason is not None]

        # Wait for all of them before raising an error: a connection serves one thread at a time.
        futures = [self._pool.submit(part, number) for number in range(_CONNECTIONS)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [found for future in futures for found in future.result()]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for connection in self._connections:
            thrift.close(connection)
