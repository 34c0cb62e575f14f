"""Offsets in this process: for tests and for a look around."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from headrace.stores.base import OffsetStore, refuse_conflict
from headrace.types import Progress

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from headrace.types import Batch


class Memory(OffsetStore):
    """Keeps nothing beyond the process. Stores made with the same `shared` dictionary see the same offsets."""

    def __init__(self, shared: MutableMapping[str, Progress] | None = None) -> None:
        self._all: MutableMapping[str, Progress] = {} if shared is None else shared
        self._pipeline = ""

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        return self

    def load(self) -> Progress:
        return self._all.get(self._pipeline, Progress())

    def begin(self, batch: Batch) -> None:
        progress = self.load()
        refuse_conflict(progress, batch)
        self._all[self._pipeline] = replace(progress, pending=batch)

    def commit(self, batch: Batch) -> None:
        progress = self.load()
        refuse_conflict(progress, batch)
        self._all[self._pipeline] = progress.advanced(batch)
