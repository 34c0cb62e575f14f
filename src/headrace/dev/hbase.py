"""A real HBase on this machine, with the Thrift gateway through which Python speaks to it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.server import Node
from headrace.dev.single import Single
from headrace.spark import jars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HBASE = jars.Bundle.of(
    "hbase",
    jars.Artifact("org.apache.hbase", "hbase-server", "2.6.1"),
    jars.Artifact("org.apache.hbase", "hbase-thrift", "2.6.1"),
)
# The doors that HBase's own start script opens in Java 17.
_OPENS = (
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
_REPLY = struct.pack("!II", 0x80010002, 13) + b"getTableNames"


class Part(Node):
    """One of the two processes; both read the same configuration."""

    main: str
    heap: str
    arguments: tuple[str, ...] = ("start",)

    def __init__(self, name: str, server: HBase, ports: Mapping[str, int]) -> None:
        super().__init__(name, server.directory / name, ports)
        self._server = server

    def prepare(self) -> None:
        site = "".join(
            f"<property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>\n"
            for name, value in self._server.configuration().items()
        )
        (self.directory / "hbase-site.xml").write_text(f"<configuration>\n{site}</configuration>\n", encoding="utf-8")
        (self.directory / "log4j.properties").write_text(jvm.properties(_LOGGING), encoding="ascii")

    def command(self) -> list[str]:
        flags = ["-Djava.net.preferIPv4Stack=true", *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS)]
        return jvm.command(
            self.main, *self.arguments, jars=[self.directory, *self._server.jars], heap=self.heap, flags=flags
        )


class Master(Part):
    """Master, region server and ZooKeeper, in one process."""

    main = "org.apache.hadoop.hbase.master.HMaster"
    heap = "384m"

    def answers(self) -> bool:
        """It says so: its protocol is not for a few bytes by hand, and the gateway is asked a real question."""
        return self.alive and "Master has completed initialization" in self.process.said()


class Gateway(Part):
    """The Thrift server."""

    main = "org.apache.hadoop.hbase.thrift.ThriftServer"
    heap = "192m"

    @property
    def arguments(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("start", "-p", str(self.ports["client"]), "-b", loopback.HOST, "--infoport", "-1")

    def answers(self) -> bool:
        """It lists the tables, which it asks of the master."""
        return loopback.ask(self.ports["client"], _CALL, answer=_REPLY)


class HBase(Single):
    """`with dev.HBase(tmp_path) as hbase: ... hbase.thrift`. `options` are those of hbase-site.xml."""

    name = "hbase"
    variable = "HBASE_THRIFT"
    usual_port = 9090
    bundles = (HBASE,)

    def make_nodes(self) -> Sequence[Node]:
        zookeeper, master, region = loopback.free(3)
        self._own = {"zookeeper": zookeeper, "master": master, "region": region}
        return [Master("hbase", self, self._own), Gateway("hbase-thrift", self, {"client": self.port})]

    @property
    def thrift(self) -> str:
        return self.address

    def configuration(self) -> dict[str, str | int]:
        ours: dict[str, str | int] = {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": (self.directory / "data" / "hbase").as_uri(),
            "hbase.tmp.dir": str(self.directory / "tmp"),
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.wal.provider": "filesystem",
            "hbase.zookeeper.quorum": loopback.HOST,
            "hbase.zookeeper.property.dataDir": str(self.directory / "data" / "zookeeper"),
            "hbase.zookeeper.property.clientPort": self._own["zookeeper"],
            "hbase.zookeeper.property.clientPortAddress": loopback.HOST,
            "hbase.master.hostname": loopback.HOST,
            "hbase.master.ipc.address": loopback.HOST,
            "hbase.master.port": self._own["master"],
            "hbase.master.info.port": -1,
            "hbase.regionserver.hostname": loopback.HOST,
            "hbase.regionserver.ipc.address": loopback.HOST,
            "hbase.regionserver.port": self._own["region"],
            "hbase.regionserver.info.port": -1,
            "hbase.regionserver.handler.count": 6,
        }
        return ours | self.options
