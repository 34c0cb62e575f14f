"""The contract of effect marks, which record the completed messages of effects that are not idempotent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from headrace.core.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence


class EffectLogClient(Protocol):
    """An open connection to the marks of one pipeline. Each call is durable on return, if the system is durable."""

    def find_marked(self, messages: Sequence[str]) -> set[str]:
        """The `messages` that are marked."""

    def mark(self, message: str) -> bool:
        """Mark a message. True if it was not marked before: of several concurrent calls, one returns True."""

    def unmark(self, message: str) -> None: ...

    def close(self) -> None: ...


class EffectLog(Protocol):
    """The location of the marks of one pipeline. Executors receive it pickled, and it is the key of a cached client."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the marks."""

    def prepare(self) -> None:
        """Create what is missing and delete expired marks. The driver calls it from time to time."""

    def connect(self) -> EffectLogClient: ...


class EffectStore(Resource, ABC):
    """A store that can also keep effect marks, with or without offsets."""

    @abstractmethod
    def marks(self, pipeline: str, keep: float) -> EffectLog:
        """The marks of `pipeline`, each kept for at least `keep` seconds. Needs no `open`."""
