"""Runs AWS's DynamoDB Local on this machine: no throttling, no permissions, any credentials."""

from __future__ import annotations

from pathlib import Path
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

DYNAMODB = Bundle.of("dynamodb", Artifact("software.amazon.dynamodb", "DynamoDBLocal", "3.1.0"), natives=True)
_MAIN = Path(__file__).with_name("DynamoDB.java")
# The signature is not verified, but it must be present.
_LIST = (
    "POST / HTTP/1.1\r\n"
    f"Host: {loopback.HOST}\r\n"
    "X-Amz-Target: DynamoDB_20120810.ListTables\r\n"
    "X-Amz-Date: 20260101T000000Z\r\n"
    "Content-Type: application/x-amz-json-1.0\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=local/20260101/local/dynamodb/aws4_request,"
    " SignedHeaders=host;x-amz-date;x-amz-target, Signature=00\r\n"
    "Content-Length: 2\r\n"
    "Connection: close\r\n\r\n{}"
).encode()


class DynamoDBNode(Node):
    """The only process of the server."""

    def __init__(self, server: DynamoDB) -> None:
        super().__init__("dynamodb", server.directory, {"client": server.port})
        self._server = server

    def prepare(self) -> None:
        private_directory(self.directory / "data")

    def command(self) -> list[str]:
        defaults: dict[str, str | int] = {
            "port": self.ports["client"],
            "dbPath": str(self.directory / "data"),
            "sharedDb": "",  # all clients see the same tables, whatever their region and credentials
            "disableTelemetry": "",
            "cors": f"http://{loopback.HOST}",  # by default any page in a browser on this machine may send requests
        }
        options = (defaults | self._server.options).items()
        arguments = [word for name, value in options for word in (f"-{name}", str(value)) if word]
        natives = f"-Dsqlite4java.library.path={self._server.jars[0].parent}"
        return jvm.run_source(_MAIN, loopback.HOST, *arguments, jars=self._server.jars, heap="256m", flags=[natives])

    def is_ready(self) -> bool:
        """Whether it lists its tables, which reads from its database."""
        return loopback.ask(self.ports["client"], _LIST, answer=b'"TableNames"')


class DynamoDB(SinglePortServer):
    """`with dev.DynamoDB(tmp_path) as dynamodb: ... dynamodb.endpoint`. `options` are those of its command line, with
    "" for an option without a value."""

    name = "dynamodb"
    variable = "DYNAMODB_ENDPOINT"
    usual_port = 8000
    bundles = (DYNAMODB,)
    licence = "DynamoDB Local has AWS's own licence, LICENSE.txt in its jar: internal use, with an AWS account"

    def make_nodes(self) -> Sequence[Node]:
        return [DynamoDBNode(self)]

    @property
    def endpoint(self) -> str:
        return f"http://{loopback.HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.endpoint
