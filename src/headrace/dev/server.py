"""A dev server: one or more nodes that are started and stopped together."""

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
    """A named server of one or more nodes, which die with their owner unless it calls `detach`."""

    name: ClassVar[str]
    variable: ClassVar[str]
    bundles: ClassVar[tuple[Bundle, ...]] = ()
    licence: ClassVar[str] = ""
    """What users must know about a licence that is not open source."""

    def __init__(self, nodes: Sequence[Node], progress: Progress = silent) -> None:
        self.nodes = list(nodes)
        self.progress = progress

    @classmethod
    @abstractmethod
    def for_cli(cls, directory: Path, *, port: int | None, nodes: int, progress: Progress) -> Self:
        """The server that `headrace dev up` starts: on `port`, else on its usual one when that is free."""

    @property
    @abstractmethod
    def address(self) -> str:
        """What a client connects to."""

    @property
    def environment(self) -> dict[str, str]:
        """What `headrace dev env` exports."""
        return {self.variable: self.address}

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments of `from_record` that create the same server again, with its ports; JSON values only."""

    @classmethod
    @abstractmethod
    def from_record(cls, directory: Path, settings: Mapping[str, Any]) -> Self:
        """The server whose `settings` were recorded, to be attached to its processes."""

    def fetch(self) -> None:
        """Fetch the server's files. Raises ConfigError when that is not possible."""
        _ = self.jars

    @cached_property
    def jars(self) -> list[Path]:
        """The jars of all its bundles; looked up once, because verifying checksums takes time."""
        return [jar for bundle in self.bundles for jar in jars.fetch(bundle, self.progress)]

    def detach(self) -> None:
        """Let the processes outlive this one; called before `start`, if the caller keeps a record of them."""
        for node in self.nodes:
            node.tied = False

    def adopt_processes(self, identities: Mapping[str, ProcessId]) -> None:
        """Take over processes that were started elsewhere, by node name."""
        for node in self.nodes:
            node.process.identity = identities.get(node.name)

    def start(self, launched: Callable[[Self], None] | None = None, seconds: float = DEADLINE) -> None:
        """Start all nodes and return when all answer; on any failure stop them all.

        `launched` is called in between, so that the processes are on record before anything can go wrong.
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
        """Return when every node answers. Raises as soon as one dies: another may be waiting for it."""
        wait_for(self.nodes, seconds)

    def stop(self) -> None:
        """Stop all nodes at the same time: the last one of a quorum would otherwise wait for the others."""
        for node in self.nodes:
            node.process.terminate()
        deadline = time.monotonic() + GRACE
        for node in self.nodes:
            node.process.stop(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """SIGKILL to every node: what a crash does. `start()` brings the server back on the same ports and data."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
