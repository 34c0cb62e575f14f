"""Runs a real Cassandra on this machine: one node, loopback only."""

from __future__ import annotations

import json
import shutil
import struct
from typing import TYPE_CHECKING, Any

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.single_port_server import SinglePortServer
from headrace.jars.bundles import Bundle
from headrace.jars.ivy import Artifact
from headrace.support.paths import private_directory, write_private

if TYPE_CHECKING:
    from collections.abc import Sequence

CASSANDRA = Bundle.of("cassandra", Artifact("org.apache.cassandra", "cassandra-all", "5.0.9"))

# The --add-exports and --add-opens flags of Cassandra's own start script for Java 17.
_EXPORTS = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.unsupported/sun.misc",
)
_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.compiler/com.sun.tools.javac",
    "jdk.management/com.sun.management.internal",
)
_LOGGING = """<configuration>
<appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%date %level %logger{0}: %msg%n</pattern></encoder>
</appender>
<root level="WARN"><appender-ref ref="out"/></root>
<logger name="org.apache.cassandra.service.CassandraDaemon" level="INFO"/>
<logger name="org.apache.cassandra.transport.Server" level="INFO"/>
</configuration>
"""


def _frame(kind: int, body: bytes) -> bytes:
    return struct.pack("!BBhBI", 4, 0, 0, kind, len(body)) + body


def _text(text: str, length: str = "!H") -> bytes:
    return struct.pack(length, len(text)) + text.encode()


_STARTUP = _frame(1, struct.pack("!H", 1) + _text("CQL_VERSION") + _text("3.0.0"))
_QUERY = _frame(7, _text("SELECT bootstrapped FROM system.local", "!I") + struct.pack("!HB", 1, 0))


class CassandraNode(Node):
    """The only process of the server."""

    def __init__(self, server: Cassandra) -> None:
        (storage,) = loopback.free(1)
        super().__init__("cassandra", server.directory, {"client": server.port, "storage": storage})
        self._server = server

    def prepare(self) -> None:
        write_private(self.directory / "logback.xml", _LOGGING)
        # YAML's flow style is JSON.
        write_private(self.directory / "cassandra.yaml", json.dumps(self._config(), indent=2))
        scratch = self.directory / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)  # each start unpacks native libraries, and a kill leaves them behind
        private_directory(scratch)

    def _config(self) -> dict[str, Any]:
        data = self.directory / "data"
        seeds = f"{loopback.HOST}:{self.ports['storage']}"
        config: dict[str, Any] = {
            "cluster_name": "headrace",
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "num_tokens": 1,
            "endpoint_snitch": "SimpleSnitch",
            "seed_provider": [
                {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": seeds}]}
            ],
            "listen_address": loopback.HOST,
            "storage_port": self.ports["storage"],
            "rpc_address": loopback.HOST,
            "native_transport_port": self.ports["client"],
            "data_file_directories": [str(data / "data")],
            "commitlog_directory": str(data / "commitlog"),
            "saved_caches_directory": str(data / "saved_caches"),
            "hints_directory": str(data / "hints"),
            "cdc_raw_directory": str(data / "cdc_raw"),
            # Offsets may be stored here: acknowledged writes must be on disk.
            "commitlog_sync": "batch",
            "commitlog_segment_size": "8MiB",
            "memtable_heap_space": "64MiB",
            "memtable_offheap_space": "64MiB",
            "file_cache_size": "32MiB",
            "key_cache_size": "0MiB",
            "counter_cache_size": "0MiB",
            "hinted_handoff_enabled": False,
            "auto_snapshot": False,
            # Timeouts for a laptop that starts other JVMs at the same time.
            "read_request_timeout": "20s",
            "range_request_timeout": "20s",
            "write_request_timeout": "20s",
            "cas_contention_timeout": "20s",
            "truncate_request_timeout": "60s",
            "request_timeout": "20s",
        }
        return config | self._server.options

    def command(self) -> list[str]:
        properties = {
            "cassandra.config": (self.directory / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": self.directory / "data",
            "cassandra.logdir": self.directory,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.ring_delay_ms": 0,
            "cassandra.initial_token": 0,
            "cassandra-foreground": "yes",
            "java.io.tmpdir": self.directory / "tmp",
            "jdk.attach.allowAttachSelf": "true",
            "io.netty.tryReflectionSetAccessible": "true",
            "logback.configurationFile": self.directory / "logback.xml",
        }
        flags = ["-Xss512k"]
        flags += [f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS]
        flags += [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS]
        flags += [f"-D{name}={value}" for name, value in properties.items()]
        main = "org.apache.cassandra.service.CassandraDaemon"
        return jvm.command(main, jars=self._server.jars, heap="256m", flags=flags)

    def is_ready(self) -> bool:
        """Whether it answers a query, and has joined its ring."""
        return loopback.ask(self.ports["client"], _STARTUP, _QUERY, answer=b"COMPLETED")


class Cassandra(SinglePortServer):
    """`with dev.Cassandra(tmp_path) as cassandra: ... cassandra.hosts`. `options` are those of cassandra.yaml."""

    name = "cassandra"
    variable = "CASSANDRA_HOSTS"
    usual_port = 9042
    bundles = (CASSANDRA,)

    def make_nodes(self) -> Sequence[Node]:
        return [CassandraNode(self)]

    @property
    def hosts(self) -> str:
        return self.address
