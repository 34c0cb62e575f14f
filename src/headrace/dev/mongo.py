"""Runs mongo-java-server on this machine: a server with MongoDB's protocol that behaves like MongoDB 4.2.

It has no sessions, transactions, replica sets or capped collections.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.single_port_server import SinglePortServer
from headrace.errors import ConfigError
from headrace.jars.bundles import Bundle
from headrace.jars.ivy import Artifact
from headrace.support.paths import private_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

MONGO = Bundle.of("mongo", Artifact("de.bwaldvogel", "mongo-java-server-h2-backend", "1.47.0"))
_MAIN = Path(__file__).with_name("Mongo.java")


def _message(body: bytes) -> bytes:
    document = struct.pack("<i", len(body) + 5) + body + b"\0"
    return struct.pack("<iiiiiB", 21 + len(document), 1, 0, 2013, 0, 0) + document


# The request {ping: 1, $db: "admin"}, and {ok: 1.0} in the response.
_PING = _message(b"\x10ping\0" + struct.pack("<i", 1) + b"\x02$db\0" + struct.pack("<i", 6) + b"admin\0")
_PONG = b"\x01ok\0" + struct.pack("<d", 1.0)


class MongoNode(Node):
    """The only process of the server."""

    def __init__(self, server: Mongo) -> None:
        super().__init__("mongo", server.directory, {"client": server.port})
        self._server = server

    def prepare(self) -> None:
        private_directory(self.directory / "data")

    def command(self) -> list[str]:
        arguments = [str(self.directory / "data" / "mongo.db"), loopback.HOST, str(self.ports["client"])]
        return jvm.run_source(_MAIN, *arguments, jars=self._server.jars, heap="192m")

    def is_ready(self) -> bool:
        return loopback.ask(self.ports["client"], _PING, answer=_PONG)


class Mongo(SinglePortServer):
    """`with dev.Mongo(tmp_path) as mongo: ... mongo.url`. It has no `options`."""

    name = "mongo"
    variable = "MONGO_URL"
    usual_port = 27017
    bundles = (MONGO,)

    def make_nodes(self) -> Sequence[Node]:
        if self.options:
            raise ConfigError(f"the dev server for MongoDB takes no options, got {next(iter(self.options))}")
        return [MongoNode(self)]

    @property
    def url(self) -> str:
        return f"mongodb://{loopback.HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.url
