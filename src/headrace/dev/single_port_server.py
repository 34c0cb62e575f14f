"""The base class of dev servers with a single port."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headrace.dev import ports as loopback
from headrace.dev.server import Server, silent
from headrace.errors import ConfigError
from headrace.support.paths import stored_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.dev.node import Node
    from headrace.dev.server import Progress


class SinglePortServer(Server):
    """A server with one port for clients: `port`, by default a free one.

    `options` are settings of the server and override Headrace's. The data stays in `directory`.
    """

    usual_port: ClassVar[int]

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        options: Mapping[str, str | int] | None = None,
        progress: Progress = silent,
    ) -> None:
        self.directory = directory.absolute()
        self.port = port or loopback.free(1)[0]
        self.options = dict(options or {})
        super().__init__(self.make_nodes(), progress)

    @abstractmethod
    def make_nodes(self) -> Sequence[Node]:
        """The processes, in the order in which they are started."""

    @classmethod
    def for_cli(cls, directory: Path, *, port: int | None, nodes: int, progress: Progress) -> Self:
        if nodes != 1:
            raise ConfigError(f"{cls.name} has one node, got nodes={nodes}", hint=f"headrace dev up {cls.name}")
        return cls(directory, port=loopback.choose_port(port, cls.usual_port, cls.name), progress=progress)

    @cached_property
    def password(self) -> str:
        """The password of servers that need one: generated once, in a file that only this user can read."""
        return stored_secret(self.directory / "password")

    @property
    def address(self) -> str:
        return f"{loopback.HOST}:{self.port}"

    def settings(self) -> dict[str, Any]:
        return {"port": self.port, "options": self.options}

    @classmethod
    def from_record(cls, directory: Path, settings: Mapping[str, Any]) -> Self:
        return cls(directory, **settings)


def find_packaged(server: str, package: str, program: str) -> Path:
    """A program inside a Python package, found without importing it. Raises ConfigError if it is missing."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        found = Path(folder) / program
        if found.is_file():
            return found.resolve()
    name = package.replace("_", "-")
    missing = f"{name} has no {program}" if folders else f"{name} is not installed"
    raise ConfigError(f"{server} needs a Python package, but {missing}", hint="pip install 'headrace[dev]'")
