"""Offsets in the memory of this process, for tests and experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from headrace.core.offset_store import OffsetStore
from headrace.core.state import AuditEntry, State

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence


class Memory(OffsetStore):
    """Loses all offsets when the process ends. Stores with the same `shared` dictionary share their offsets."""

    def __init__(self, shared: MutableMapping[str, tuple[State, tuple[AuditEntry, ...]]] | None = None) -> None:
        self._all = {} if shared is None else shared
        self._pipeline = ""

    @property
    def identity(self) -> str:
        return "stores.Memory()"

    def open(self, pipeline: str) -> Self:
        self._pipeline = pipeline
        return self

    def read(self) -> tuple[State, Any]:
        state, _ = self._entry()
        return state, state

    def swap(self, version: Any, old: State, new: State, change: AuditEntry | None = None) -> bool:
        state, history = self._entry()
        if state is not version:
            return False
        self._all[self._pipeline] = (new, (*history, change) if change else history)
        return True

    def history(self) -> Sequence[AuditEntry]:
        return self._entry()[1]

    def _entry(self) -> tuple[State, tuple[AuditEntry, ...]]:
        return self._all.setdefault(self._pipeline, (State(), ()))
