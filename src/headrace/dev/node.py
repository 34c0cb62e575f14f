"""One process of a dev server: prepares, starts, stops and kills it, and waits until it is ready."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.dev.process import Process
from headrace.errors import ConfigError, RetriableError
from headrace.support.paths import private_directory
from headrace.support.polling import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DEADLINE = 90.0
# Other variables of the owner may hold passwords and tokens, which a server could show to its clients.
_INHERITED_VARIABLES = ("HOME", "JAVA_HOME", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")


def environment(*more: str) -> dict[str, str]:
    """The environment of a server: a few variables without secrets, and those in `more`."""
    inherited = {name: os.environ[name] for name in (*_INHERITED_VARIABLES, *more) if name in os.environ}
    return {**inherited, "LC_ALL": "C.UTF-8"}


class Node(ABC):
    """One process of a server with its own directory. It can start again on the same data, even after a kill."""

    def __init__(self, name: str, directory: Path, ports: Mapping[str, int]) -> None:
        self.name = name
        self.directory = directory
        self.ports = dict(ports)
        self.process = self.make_process(directory / f"{name}.log")
        self.tied = True

    def make_process(self, log: Path) -> Process:
        """A process that stops at SIGTERM and runs as this user. Servers with other requirements override it."""
        return Process(log)

    @abstractmethod
    def prepare(self) -> None:
        """Write the files that the process needs. Called before each start, also on existing data."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command line."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers a request, as only a ready server does; an open port is not enough. At most one second."""

    def environment(self) -> dict[str, str]:
        """The environment of the process."""
        return environment()

    @property
    def within(self) -> Path:
        """The directory to run in, where a crash may leave a dump; not the user's project."""
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
        """Start the process without waiting. Does nothing if it is running already."""
        if self.alive:
            return
        private_directory(self.directory)
        self.prepare()
        self.process.spawn(self.command(), self.environment(), tied=self.tied, within=self.within)

    def wait(self, seconds: float = DEADLINE) -> None:
        """Wait until it answers. Raises ConfigError if it dies, RetriableError if it is too slow."""
        wait_for([self], seconds)

    def start(self, seconds: float = DEADLINE) -> None:
        """Start the process and wait until it answers."""
        self.launch()
        self.wait(seconds)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        """Send SIGKILL, like a crash. `start()` starts it again on the same ports and data."""
        self.process.kill()


def wait_for(nodes: Sequence[Node], seconds: float) -> None:
    waiting = list(nodes)

    def all_ready() -> bool:
        waiting[:] = [node for node in waiting if not node.is_ready()]
        for node in nodes if waiting else ():
            if not node.alive:
                raise ConfigError(f"{node.name} stopped while starting; {_end_of_log(node)}", hint=f"less {node.log}")
        return not waiting

    if not wait_until(all_ready, seconds):
        raise RetriableError(
            f"{waiting[0].name} was not ready within {seconds:.0f} s; {_end_of_log(waiting[0])}",
            hint=f"less {waiting[0].log}",
        )


def _end_of_log(node: Node) -> str:
    return f"the end of {node.log}:\n{node.process.tail()}"
