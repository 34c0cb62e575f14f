"""What a dev server is: one or more nodes that are started, asked until they answer, and stopped."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headrace.dev.process import GRACE, Process
from headrace.errors import ConfigError, RetriableError
from headrace.spark import jars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from headrace.dev.process import Identity
    from headrace.spark.jars import Bundle

    Progress = Callable[[str], None]

DEADLINE = 90.0


def silent(line: str) -> None:
    """Progress for callers that have nobody to tell."""


class Node(ABC):
    """One process of a server, in its own directory; killed, it can be started again on the same data."""

    def __init__(self, name: str, directory: Path, ports: Mapping[str, int]) -> None:
        self.name = name
        self.directory = directory
        self.ports = dict(ports)
        self.process = self.make_process(directory / f"{name}.log")
        self.tied = True

    def make_process(self, log: Path) -> Process:
        """A process that stops at SIGTERM and runs as its owner does; for a server with other habits, another."""
        return Process(log)

    @abstractmethod
    def prepare(self) -> None:
        """Write what the process needs. Called before each start, also on data of an earlier life."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What to run."""

    @abstractmethod
    def answers(self) -> bool:
        """Ask what only a ready server can answer; an open port is no answer. Takes a second at most."""

    @property
    def within(self) -> Path:
        """The directory to run in: there, and not in the user's project, it may leave a dump when it crashes."""
        return self.directory

    @property
    def log(self) -> Path:
        return self.process.log

    @property
    def pid(self) -> int | None:
        return self.process.identity.pid if self.process.identity else None

    @property
    def alive(self) -> bool:
        return self.process.alive

    def launch(self) -> None:
        """Start the process, without waiting. A node that runs already is left alone."""
        if self.alive:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        self.process.spawn(self.command(), environment, tied=self.tied, within=self.within)

    def wait(self, seconds: float = DEADLINE) -> None:
        """Return when it answers. Raises ConfigError when it dies, RetriableError when it is too slow."""
        deadline = time.monotonic() + seconds
        while not self.answers():
            if not self.alive:
                raise ConfigError(f"{self.name} stopped while starting; {self._ending()}", hint=f"less {self.log}")
            if time.monotonic() > deadline:
                said = f"{self.name} did not answer within {seconds:.0f} s; {self._ending()}"
                raise RetriableError(said, hint=f"less {self.log}")
            time.sleep(0.05)

    def _ending(self) -> str:
        return f"the end of {self.log}:\n{self.process.tail()}"

    def start(self, seconds: float = DEADLINE) -> None:
        """Start the process and return when it answers."""
        self.launch()
        self.wait(seconds)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL: what a crash does. `start()` brings it back on the same ports and data."""
        self.process.kill()


class Server(ABC):
    """A named server of one or more nodes, which die with their owner unless it calls `detach`."""

    name: ClassVar[str]
    variable: ClassVar[str]
    bundles: ClassVar[tuple[Bundle, ...]] = ()

    def __init__(self, nodes: Sequence[Node], progress: Progress = silent) -> None:
        self.nodes = list(nodes)
        self.progress = progress

    @classmethod
    @abstractmethod
    def chosen(cls, directory: Path, *, port: int | None, nodes: int, progress: Progress) -> Self:
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
        """What makes the same server again with `again`, ports included; JSON values only."""

    @classmethod
    @abstractmethod
    def again(cls, directory: Path, settings: Mapping[str, Any]) -> Self:
        """The server whose `settings` were recorded, to be attached to its processes."""

    def fetch(self) -> None:
        """Bring the server's files onto this machine. Raises ConfigError when that cannot be."""
        _ = self.jars

    @cached_property
    def jars(self) -> list[Path]:
        """The jars of all its bundles; looked up once, for their checksums take a moment."""
        return [jar for bundle in self.bundles for jar in jars.fetch(bundle, self.progress)]

    def detach(self) -> None:
        """Let the processes outlive this one; called before `start` by someone who keeps a record of them."""
        for node in self.nodes:
            node.tied = False

    def attach(self, identities: Mapping[str, Identity]) -> None:
        """Take over processes that were started elsewhere, by node name."""
        for node in self.nodes:
            node.process.identity = identities.get(node.name)

    def start(self, launched: Callable[[Self], None] | None = None, seconds: float = DEADLINE) -> None:
        """Start all nodes and return when all answer; on any failure stop them all.

        `launched` is called in between, so that the processes are on record before anything can go wrong.
        """
        self.fetch()
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
        """Return when every node answers."""
        deadline = time.monotonic() + seconds
        for node in self.nodes:
            node.wait(max(1.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Stop every node. All are told at once: the last of a quorum would wait in vain for the others."""
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
