"""Which messages are done, for effects that cannot be told from their repeats: the contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from headrace.core.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence


class EffectLogClient(Protocol):
    """Marks of one pipeline, connected. Each call is durable on return, as far as the system behind it is."""

    def among(self, messages: Sequence[str]) -> set[str]:
        """Those that are marked."""

    def mark(self, message: str) -> bool:
        """Whether it was not marked before: of several that mark it at once, one hears True."""

    def unmark(self, message: str) -> None: ...

    def close(self) -> None: ...


class EffectLog(Protocol):
    """Where the marks of one pipeline are. Pickled to the executors, and hashable: a client is kept by it."""

    @property
    def local(self) -> bool:
        """Whether only this machine reaches them."""

    def prepare(self) -> None:
        """Create what is missing, and forget what is older than it is kept. Called now and then, by the driver."""

    def connect(self) -> EffectLogClient: ...


class EffectStore(Resource, ABC):
    """A store that can keep marks as well, beside the offsets or without them."""

    @abstractmethod
    def marks(self, pipeline: str, keep: float) -> EffectLog:
        """Those of `pipeline`, each kept for `keep` seconds at least. Needs no `open`."""
