"""Runs a real ZooKeeper on this machine, from the jars that pyspark ships."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.single_port_server import SinglePortServer
from headrace.support.paths import write_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Only these of pyspark's hundreds of jars: loading all needs 50 % more memory.
_NEEDED = frozenset(
    {
        "log4j-api",
        "log4j-core",
        "log4j-slf4j2-impl",
        "metrics-core",
        "slf4j-api",
        "snappy-java",
        "zookeeper",
        "zookeeper-jute",
    }
)
_LOGGING = {
    "rootLogger.level": "info",
    "rootLogger.appenderRef.out.ref": "out",
    "appender.out.type": "Console",
    "appender.out.name": "out",
    "appender.out.layout.type": "PatternLayout",
    "appender.out.layout.pattern": "%d %p %c{1}: %m%n",
    "logger.questions.name": "org.apache.zookeeper.server.NIOServerCnxn",  # it logs a line per readiness check
    "logger.questions.level": "warn",
}


class Peer(Node):
    """The only process of the server."""

    def __init__(self, server: ZooKeeper) -> None:
        super().__init__("zookeeper", server.directory, {"client": server.port})
        self._server = server

    def prepare(self) -> None:
        defaults: dict[str, str | int] = {
            "dataDir": str(self.directory / "data"),
            "tickTime": 2000,
            "clientPort": self.ports["client"],
            "clientPortAddress": loopback.HOST,
            "admin.enableServer": "false",  # it would listen on all interfaces
            "4lw.commands.whitelist": "ruok,srvr,stat",
            "autopurge.purgeInterval": 1,
        }
        config = jvm.properties(defaults | self._server.options)
        write_private(self.directory / "zoo.cfg", config)
        write_private(self.directory / "log4j2.properties", jvm.properties(_LOGGING))

    def command(self) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={(self.directory / 'log4j2.properties').as_uri()}"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        config = str(self.directory / "zoo.cfg")
        return jvm.command(main, config, jars=self._server.jars, heap="128m", flags=[logging])

    def is_ready(self) -> bool:
        """Whether it reports its mode; the port is open before it has one."""
        return loopback.ask(self.ports["client"], b"srvr", answer=b"Mode:")


class ZooKeeper(SinglePortServer):
    """`with dev.ZooKeeper(tmp_path) as zookeeper: ... zookeeper.hosts`. `options` are those of zoo.cfg."""

    name = "zookeeper"
    variable = "ZOOKEEPER_HOSTS"
    usual_port = 2181

    def make_nodes(self) -> Sequence[Node]:
        return [Peer(self)]

    @property
    def hosts(self) -> str:
        return self.address

    @cached_property
    def jars(self) -> list[Path]:
        return jvm.from_spark(_NEEDED, "ZooKeeper")
