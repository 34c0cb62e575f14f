"""Runs a real HBase on this machine, with the Thrift gateway that Python clients use."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar
from xml.sax.saxutils import escape

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.single_port_server import SinglePortServer
from headrace.jars.bundles import Bundle
from headrace.jars.ivy import Artifact
from headrace.support.paths import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HBASE = Bundle.of(
    "hbase",
    Artifact("org.apache.hbase", "hbase-server", "2.6.1"),
    Artifact("org.apache.hbase", "hbase-thrift", "2.6.1"),
)
# The --add-opens flags of HBase's own start script for Java 17.
OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
)
_LOGGING = {
    "log4j.rootLogger": "WARN, out",
    "log4j.logger.org.apache.hadoop.hbase.master.HMaster": "INFO",
    "log4j.appender.out": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.out.layout": "org.apache.log4j.PatternLayout",
    "log4j.appender.out.layout.ConversionPattern": "%d %p %c{1}: %m%n",
}
_CALL = struct.pack("!II", 0x80010001, 13) + b"getTableNames" + struct.pack("!IB", 1, 0)
# The reply has a list as its result, or an exception.
_REPLY = struct.pack("!II", 0x80010002, 13) + b"getTableNames" + struct.pack("!IBH", 1, 15, 0)


class HBaseNode(Node):
    """One of the two processes of the server."""

    main: ClassVar[str]
    heap: ClassVar[str]

    def __init__(self, name: str, server: HBase, ports: Mapping[str, int]) -> None:
        super().__init__(name, server.directory / name, ports)
        self._server = server

    def configuration(self) -> dict[str, str | int]:
        return self._server.configuration()

    def arguments(self) -> list[str]:
        return ["start"]

    def prepare(self) -> None:
        site = "".join(
            f"<property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>\n"
            for name, value in (self.configuration() | self._server.options).items()
        )
        write_private(self.directory / "hbase-site.xml", f"<configuration>\n{site}</configuration>\n")
        write_private(self.directory / "log4j.properties", jvm.properties(_LOGGING))

    def command(self) -> list[str]:
        flags = ["-Djava.net.preferIPv4Stack=true", *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENS)]
        classpath = [self.directory, *self._server.jars]
        return jvm.command(self.main, *self.arguments(), jars=classpath, heap=self.heap, flags=flags)


class Master(HBaseNode):
    """Master, region server and ZooKeeper, in one process."""

    main = "org.apache.hadoop.hbase.master.HMaster"
    heap = "384m"

    def configuration(self) -> dict[str, str | int]:
        # At a stop its ZooKeeper ends first; by default the master would then retry for 20 seconds.
        return super().configuration() | {"zookeeper.recovery.retry": 1}

    def is_ready(self) -> bool:
        """Whether its log says so. Requests would occupy its few handlers, so that it never became ready."""
        return self.alive and self.process.logged("Master has completed initialization")


class ThriftServer(HBaseNode):
    """The Thrift server."""

    main = "org.apache.hadoop.hbase.thrift.ThriftServer"
    heap = "192m"

    def arguments(self) -> list[str]:
        return ["start", "-p", str(self.ports["client"]), "-b", loopback.HOST, "--infoport", "-1"]

    def is_ready(self) -> bool:
        """Whether it lists the tables; it requests them from the master, so that must be ready as well."""
        return self._server.master.is_ready() and loopback.ask(self.ports["client"], _CALL, answer=_REPLY)


class HBase(SinglePortServer):
    """`with dev.HBase(tmp_path) as hbase: ... hbase.thrift`. `options` are those of hbase-site.xml."""

    name = "hbase"
    variable = "HBASE_THRIFT"
    usual_port = 9090
    bundles = (HBASE,)

    def make_nodes(self) -> Sequence[Node]:
        zookeeper, master, region = loopback.free(3)
        self._internal_ports = {"zookeeper": zookeeper, "master": master, "region": region}
        self.master = Master("hbase", self, self._internal_ports)
        return [self.master, ThriftServer("hbase-thrift", self, {"client": self.port})]

    @property
    def thrift(self) -> str:
        return self.address

    def configuration(self) -> dict[str, str | int]:
        return {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": (self.directory / "data" / "hbase").as_uri(),
            "hbase.tmp.dir": str(self.directory / "tmp"),
            "hbase.unsafe.stream.capability.enforce": "false",
            # It has no authentication, and a client that creates a table can give it a coprocessor with its own code.
            "hbase.coprocessor.user.enabled": "false",
            "hbase.wal.provider": "filesystem",
            "hbase.zookeeper.quorum": loopback.HOST,
            "hbase.zookeeper.property.dataDir": str(self.directory / "data" / "zookeeper"),
            "hbase.zookeeper.property.clientPort": self._internal_ports["zookeeper"],
            "hbase.zookeeper.property.clientPortAddress": loopback.HOST,
            "hbase.master.hostname": loopback.HOST,
            "hbase.master.ipc.address": loopback.HOST,
            "hbase.master.port": self._internal_ports["master"],
            "hbase.master.info.port": -1,
            "hbase.regionserver.hostname": loopback.HOST,
            "hbase.regionserver.ipc.address": loopback.HOST,
            "hbase.regionserver.port": self._internal_ports["region"],
            "hbase.regionserver.info.port": -1,
            "hbase.regionserver.handler.count": 6,
        }
