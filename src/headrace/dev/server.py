"""The base class of dev servers: one or more nodes that are started and stopped together."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headrace.dev.node import DEADLINE, wait_for
from headrace.dev.process import GRACE
from headrace.jars import cache as jars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from headrace.dev.node import Node
    from headrace.dev.process import ProcessId
    from headrace.jars.bundles import Bundle

    Progress = Callable[[str], None]


def silent(line: str) -> None:
    """Ignore progress."""


class Server(ABC):
    """A named server of one or more nodes, which end with their owner unless it calls `detach`."""

    name: ClassVar[str]
    variable: ClassVar[str]
    bundles: ClassVar[tuple[Bundle, ...]] = ()
    licence: ClassVar[str] = ""
    """A note on a licence that is not open source."""

    def __init__(self, nodes: Sequence[Node], progress: Progress = silent) -> None:
        self.nodes = list(nodes)
        self.progress = progress

    @classmethod
    @abstractmethod
    def for_cli(cls, directory: Path, *, port: int | None, nodes: int, progress: Progress) -> Self:
        """The server that `headrace dev up` starts: on `port`, otherwise on its usual port if that is free."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for clients."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that `headrace dev env` exports."""
        return {self.variable: self.address}

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments of `from_record` that create the same server again, with its ports; JSON values only."""

    @classmethod
    @abstractmethod
    def from_record(cls, directory: Path, settings: Mapping[str, Any]) -> Self:
        """The server whose `settings` were recorded, to be attached to its processes."""

    def fetch(self) -> None:
        """Fetch the server's files. Raises ConfigError if that is not possible."""
        _ = self.jars

    @cached_property
    def jars(self) -> list[Path]:
        """The jars of all its bundles; looked up once, because verifying checksums takes time."""
        return [jar for bundle in self.bundles for jar in jars.fetch(bundle, self.progress)]

    def detach(self) -> None:
        """Let the processes outlive this one. Called before `start` if the caller records them."""
        for node in self.nodes:
            node.tied = False

    def adopt_processes(self, identities: Mapping[str, ProcessId]) -> None:
        """Take over processes that were started elsewhere, by node name."""
        for node in self.nodes:
            node.process.identity = identities.get(node.name)

    def start(self, launched: Callable[[Self], None] | None = None, seconds: float = DEADLINE) -> None:
        """Start all nodes and wait until all answer; stop them all after any failure.

        `launched` is called in between, so that the processes are recorded before an error can occur.
        """
        self.fetch()
        if self.licence:
            self.progress(self.licence)
        try:
            for node in self.nodes:
                self.progress(f"starting {node.name}")
                node.launch()
            if launched is not None:
                launched(self)
            self.wait(seconds)
        except BaseException:
            self.kill()
            raise

    def wait(self, seconds: float = DEADLINE) -> None:
        """Wait until all nodes answer. Raises as soon as one dies: another may be waiting for it."""
        wait_for(self.nodes, seconds)

    def stop(self) -> None:
        """Stop all nodes at the same time: otherwise the last one of a quorum would wait for the others."""
        for node in self.nodes:
            node.process.terminate()
        deadline = time.monotonic() + GRACE
        for node in self.nodes:
            node.process.stop(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """Send SIGKILL to all nodes, like a crash. `start()` starts them again on the same ports and data."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
