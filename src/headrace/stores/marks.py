"""Which messages are done, for effects that cannot be told from their repeats: the contract, and marks in SQL."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from headrace.stores.sql import Connection

TABLE = """CREATE TABLE IF NOT EXISTS headrace_marks (
    pipeline TEXT NOT NULL, message TEXT NOT NULL, marked BIGINT NOT NULL, PRIMARY KEY (pipeline, message))"""


class Marker(Protocol):
    """Marks of one pipeline, connected. Each call is durable on return, as far as the system behind it is."""

    def among(self, messages: Sequence[str]) -> set[str]:
        """Those that are marked."""

    def mark(self, message: str) -> bool:
        """Whether it was not marked before: of several that mark it at once, one hears True."""

    def unmark(self, message: str) -> None: ...

    def close(self) -> None: ...


class Marks(Protocol):
    """Where the marks of one pipeline are. Pickled to the executors, and hashable: a client is kept by it."""

    @property
    def local(self) -> bool:
        """Whether only this machine reaches them."""

    def prepare(self) -> None:
        """Create what is missing, and forget what is older than it is kept. Called now and then, by the driver."""

    def connect(self) -> Marker: ...


class MarkKeeper(Resource, ABC):
    """A store that can keep marks as well, beside the offsets or without them."""

    @abstractmethod
    def marks(self, pipeline: str, keep: float) -> Marks:
        """Those of `pipeline`, each kept for `keep` seconds at least. Needs no `open`."""


@dataclass(frozen=True, slots=True)
class SqlMarker:
    """Marks in the table headrace_marks. `connection` commits each statement; `translated` is for its errors."""

    connection: Connection
    pipeline: str
    translated: Callable[[], AbstractContextManager[None]]
    end: Callable[[], object]

    def prepare(self, keep: float) -> None:
        with self.translated():
            old = [self.pipeline, int(time.time() - keep)]
            self.connection.execute("DELETE FROM headrace_marks WHERE pipeline = ? AND marked < ?", old)

    def among(self, messages: Sequence[str]) -> set[str]:
        if not messages:
            return set()
        several = ", ".join("?" * len(messages))
        asked = f"SELECT message FROM headrace_marks WHERE pipeline = ? AND message IN ({several})"  # noqa: S608
        with self.translated():
            return {message for (message,) in self.connection.execute(asked, [self.pipeline, *messages]).fetchall()}

    def mark(self, message: str) -> bool:
        new = "INSERT INTO headrace_marks VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1"
        with self.translated():
            return bool(self.connection.execute(new, [self.pipeline, message, int(time.time())]).fetchall())

    def unmark(self, message: str) -> None:
        gone = "DELETE FROM headrace_marks WHERE pipeline = ? AND message = ?"
        with self.translated():
            self.connection.execute(gone, [self.pipeline, message])

    def close(self) -> None:
        self.end()
