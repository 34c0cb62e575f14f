"""Runs a real schema registry on this machine: Apicurio, with the paths of Confluent's registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.node import Node
from headrace.dev.single_port_server import SinglePortServer
from headrace.jars.bundles import Bundle
from headrace.jars.ivy import Artifact
from headrace.support.paths import private_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

APICURIO = Bundle.of(
    "apicurio", Artifact("io.apicurio", "apicurio-registry-app", "3.0.9", classifier="all", type="tar.gz")
)
_API = "/apis/ccompat/v7"
_SUBJECTS = f"GET {_API}/subjects HTTP/1.1\r\nHost: {loopback.HOST}\r\nConnection: close\r\n\r\n".encode()


class RegistryNode(Node):
    """The only process of the server."""

    def __init__(self, server: SchemaRegistry) -> None:
        super().__init__("schema-registry", server.directory, {"client": server.port})
        self._server = server

    def prepare(self) -> None:
        private_directory(self.directory / "data")

    def command(self) -> list[str]:
        defaults: dict[str, str | int] = {
            "quarkus.http.host": loopback.HOST,
            "quarkus.http.port": self.ports["client"],
            "quarkus.http.access-log.enabled": "false",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            # Write at once: acknowledged schemas must survive a crash.
            "apicurio.datasource.url": f"jdbc:h2:file:{self.directory / 'data' / 'registry'};WRITE_DELAY=0",
            "apicurio.rules.global.compatibility": "BACKWARD",  # Confluent's default; Apicurio's own accepts any schema
        }
        flags = [f"-D{name}={value}" for name, value in (defaults | self._server.options).items()]
        program = [jar for jar in self._server.jars if jar.name.endswith("-runner.jar")]
        return jvm.command("io.quarkus.runner.GeneratedMain", jars=program, heap="256m", flags=flags)

    def is_ready(self) -> bool:
        """Whether it lists its subjects, which reads from its database."""
        return loopback.ask(self.ports["client"], _SUBJECTS, answer=b" 200 OK")


class SchemaRegistry(SinglePortServer):
    """`with dev.SchemaRegistry(tmp_path) as registry: ... registry.url`. `options` are properties of Apicurio."""

    name = "schema-registry"
    variable = "SCHEMA_REGISTRY_URL"
    usual_port = 8081
    bundles = (APICURIO,)

    def make_nodes(self) -> Sequence[Node]:
        return [RegistryNode(self)]

    @property
    def url(self) -> str:
        return f"http://{loopback.HOST}:{self.port}{_API}"

    @property
    def address(self) -> str:
        return self.url
