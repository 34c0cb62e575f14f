"""Runs a real Kafka on this machine: KRaft, one or more brokers, loopback only."""

from __future__ import annotations

import base64
import subprocess
import uuid
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.server import Server, silent
from headrace.errors import ConfigError
from headrace.jars.bundles import Bundle
from headrace.jars.ivy import Artifact
from headrace.support.paths import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from confluent_kafka.admin import AdminClient

    from headrace.dev.server import Progress

KAFKA = Bundle.of(
    "kafka",
    Artifact("org.apache.kafka", "kafka_2.13", "4.3.1"),
    # Kafka's artifact has no logger as a dependency; without one, a broker would fail without a message.
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)
PREFERRED_PORT = 9092
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


def new_id(value: uuid.UUID) -> str:
    """A cluster id in Kafka's format, but without a dash: Kafka's tools would parse a leading one as an option."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=").replace("-", "A")


class Broker(Node):
    """One node of the cluster; the first ones are also its controllers."""

    def __init__(self, number: int, cluster: Kafka, directory: Path, port: int, controller: int) -> None:
        super().__init__(f"kafka-{number}", directory, {"broker": port, "controller": controller})
        self.number = number
        self._cluster = cluster

    @property
    def address(self) -> str:
        return f"{loopback.HOST}:{self.ports['broker']}"

    def prepare(self) -> None:
        properties = self.directory / "server.properties"
        write_private(properties, jvm.properties(self._cluster.properties(self)))
        if (self.directory / "data" / "meta.properties").exists():
            return
        # Use Kafka's tool, because formatting also enables features of the release, such as the new group protocol.
        arguments = ["-t", self._cluster.id, "-c", str(properties), *self._cluster.formatting()]
        file = self.directory / "format.arguments"  # for passwords: all users of the machine can read a command line
        write_private(file, "\n".join(arguments))
        command = self._java("kafka.tools.StorageTool", "format", f"@{file}")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        finally:
            file.unlink()
        if done.returncode != 0:
            raise ConfigError(
                f"{self.name} cannot be formatted: {(done.stderr or done.stdout).strip()}",
                hint=f"check the options, or start with empty data: rm -r {self.directory}",
            )

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self.directory / "server.properties"))

    def is_ready(self) -> bool:
        """Whether it lists itself: then it is registered with the controller and accepts requests."""
        from confluent_kafka import KafkaException

        try:
            return self.number in self._admin.list_topics(timeout=1.0).brokers
        except KafkaException:
            return False

    @cached_property
    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        settings: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "log_level": 0,  # refused connections are expected during the wait
            "error_cb": lambda _: None,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
        return AdminClient(settings)

    def _java(self, *arguments: str) -> list[str]:
        return jvm.command(*arguments, jars=self._cluster.jars, heap=self._cluster.heap, flags=_LOGGING)


class Kafka(Server):
    """`with dev.Kafka(tmp_path) as kafka: ... kafka.bootstrap` — a cluster that ends with the block.

    By default it uses free ports. `options` are broker properties and override Headrace's.
    The data stays in `directory`; a cluster with the same directory and number of brokers uses it again.
    """

    name = "kafka"
    variable = "KAFKA_BOOTSTRAP"
    bundles = (KAFKA,)

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        ports: Sequence[int] = (),
        options: Mapping[str, str | int] | None = None,
        heap: str = "1g",
        progress: Progress = silent,
    ) -> None:
        if brokers < 1:
            raise ConfigError(f"brokers must be at least 1, got {brokers}", hint="headrace dev up kafka --brokers 1")
        if len(ports) > brokers:
            raise ConfigError(
                f"expected at most {brokers} ports, one per broker, got {len(ports)}", hint="leave out ports"
            )
        self.options = dict(options or {})
        self.heap = heap
        # The data belongs to one quorum: another number of brokers is another cluster.
        self.directory = directory.absolute() / f"{brokers}-brokers"
        # A quorum of two is worse than one of one: it stops if either node dies.
        self.voters = 3 if brokers >= 3 else 1
        free_ports = [port for port in loopback.free(2 * brokers + len(ports)) if port not in ports]
        broker_ports = [*ports, *free_ports[len(ports) : brokers]]
        self.brokers = [
            Broker(
                number,
                self,
                self.directory / f"broker-{number}",
                broker_ports[number - 1],
                free_ports[brokers + number - 1],
            )
            for number in range(1, brokers + 1)
        ]
        super().__init__(self.brokers, progress)

    @classmethod
    def for_cli(cls, directory: Path, *, port: int | None, nodes: int, progress: Progress) -> Self:
        first = loopback.choose_port(port, PREFERRED_PORT, cls.name)
        heap = "1g" if nodes == 1 else "512m"
        return cls(directory, brokers=nodes, ports=[first], heap=heap, progress=progress)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def address(self) -> str:
        return self.bootstrap

    def settings(self) -> dict[str, Any]:
        broker_ports = [broker.ports["broker"] for broker in self.brokers]
        return {"brokers": len(self.brokers), "ports": broker_ports, "options": self.options, "heap": self.heap}

    @classmethod
    def from_record(cls, directory: Path, settings: Mapping[str, Any]) -> Self:
        return cls(directory, **settings)

    @cached_property
    def id(self) -> str:
        """The cluster id: that of existing data, or a new one."""
        for meta in self.directory.glob("broker-*/data/meta.properties"):
            for line in meta.read_text(encoding="ascii").splitlines():
                if line.startswith("cluster.id="):
                    return line.partition("=")[2].replace("\\", "")
        return new_id(uuid.uuid4())

    def formatting(self) -> list[str]:
        """The arguments of the tool that formats its data directory."""
        return []

    def properties(self, broker: Broker) -> dict[str, str | int]:
        copies = min(3, len(self.brokers))
        is_controller = broker.number <= self.voters
        listeners = {"PLAINTEXT": broker.ports["broker"]}
        if is_controller:
            listeners["CONTROLLER"] = broker.ports["controller"]
        voters = (f"{b.number}@{loopback.HOST}:{b.ports['controller']}" for b in self.brokers[: self.voters])
        defaults: dict[str, str | int] = {
            "process.roles": "broker,controller" if is_controller else "broker",
            "node.id": broker.number,
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(f"{name}://{loopback.HOST}:{port}" for name, port in listeners.items()),
            "advertised.listeners": f"PLAINTEXT://{broker.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(broker.directory / "data"),
            "auto.create.topics.enable": "false",  # a misspelt topic name is an error, not a new topic
            "default.replication.factor": copies,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(1, copies - 1),
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": max(1, copies - 1),
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
            # A killed broker can register again only after its old session has expired: 9 s by default.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
        }
        return defaults | self.options
