"""Runs a real Spark cluster on this machine: a master, and workers that Spark treats as different hosts."""

from __future__ import annotations

import base64
import hmac
import http.client
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.node import Node, environment
from headrace.dev.server import silent
from headrace.dev.single_port_server import SinglePortServer
from headrace.jars import pyspark_install
from headrace.support.paths import write_private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.dev.server import Progress


_WEB_FILTER = "org.apache.spark.ui.JWSFilter"


def _base64(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


class SparkNode(Node):
    """One process, with a loopback address that Spark uses as its host."""

    def __init__(self, name: str, server: Spark, host: str, ports: Mapping[str, int]) -> None:
        super().__init__(name, server.directory / name, ports)
        self._server = server
        self.host = host

    @property
    def _properties(self) -> Path:
        return self.directory / "spark.properties"

    def prepare(self) -> None:
        """Write settings to a file: all users of the machine can read a command line."""
        settings = {**self._server.options, **self._server.authentication, **self._server.web_authentication}
        write_private(self._properties, jvm.properties(settings))

    def java(self, main: str, *arguments: str) -> list[str]:
        common = ("--host", self.host, "--properties-file", str(self._properties))
        return jvm.command(main, *common, *arguments, jars=self._server.jars, heap="256m")

    def environment(self) -> dict[str, str]:
        return {
            **environment("PYSPARK_PYTHON", "PYTHONPATH"),  # for executors, which run Python
            "SPARK_HOME": str(pyspark_install.folder()),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_SCALA_VERSION": pyspark_install.SCALA,  # otherwise it searches for folders of a Spark source build
        }

    def overview(self) -> dict[str, Any]:
        """The JSON of its status page; empty while it does not answer."""
        try:
            with closing(http.client.HTTPConnection(self.host, self.ports["webui"], timeout=1.0)) as connection:
                connection.request("GET", "/json/", headers={"Authorization": f"Bearer {self._server.web_token}"})
                found: dict[str, Any] = json.loads(connection.getresponse().read())
                return found
        except (OSError, http.client.HTTPException, ValueError):
            return {}


class Master(SparkNode):
    """Assigns workers to drivers, which connect to it."""

    def __init__(self, server: Spark) -> None:
        super().__init__("spark-master", server, loopback.HOST, {"client": server.port, "webui": server.webuis[0]})

    def command(self) -> list[str]:
        ports = ("--port", str(self.ports["client"]), "--webui-port", str(self.ports["webui"]))
        return self.java("org.apache.spark.deploy.master.Master", *ports)

    def is_ready(self) -> bool:
        return self.overview().get("status") == "ALIVE"


class Worker(SparkNode):
    """Runs executors."""

    def __init__(self, server: Spark, number: int) -> None:
        ports = {"webui": server.webuis[number]}
        super().__init__(f"spark-worker-{number}", server, f"127.0.0.{number}", ports)

    def prepare(self) -> None:
        super().prepare()
        self._server.nodes[0].wait()  # a worker that finds no master waits about ten seconds

    def command(self) -> list[str]:
        resources = ("--cores", str(self._server.cores), "--memory", self._server.memory)
        paths = ("--webui-port", str(self.ports["webui"]), "--work-dir", str(self.directory / "work"))
        return self.java("org.apache.spark.deploy.worker.Worker", *resources, *paths, self._server.address)

    def is_ready(self) -> bool:
        """Whether the master has registered it."""
        return self.overview().get("masterurl") == self._server.address


class Spark(SinglePortServer):
    """`with dev.Spark(tmp_path) as spark: session.create(spark.session)`.

    Each of the `workers` has its own loopback address, 127.0.0.1, 127.0.0.2 and so on, and runs executors with up to
    `cores` and `memory` in total. `options` are Spark settings for master and workers.
    """

    name = "spark"
    variable = "SPARK_MASTER"
    usual_port = 7077

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        port: int | None = None,
        webuis: Sequence[int] = (),
        options: Mapping[str, str | int] | None = None,
        progress: Progress = silent,
    ) -> None:
        self.workers = workers
        self.cores = cores
        self.memory = memory
        self.webuis = list(webuis) or loopback.free(1 + workers)
        defaults: dict[str, str | int] = {"spark.master.rest.enabled": "false", "spark.worker.cleanup.enabled": "true"}
        super().__init__(directory, port=port, options=defaults | dict(options or {}), progress=progress)

    def make_nodes(self) -> Sequence[Node]:
        return [Master(self), *(Worker(self, number) for number in range(1, self.workers + 1))]

    @property
    def address(self) -> str:
        return f"spark://{loopback.HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {self.variable: self.address, "_SPARK_AUTH_SECRET": self.password}

    @property
    def authentication(self) -> dict[str, str]:
        """The shared secret of drivers, master and workers, without which any user of this machine could run code."""
        return {"spark.authenticate": "true", "spark.authenticate.secret": self.password}

    @property
    def web_authentication(self) -> dict[str, str]:
        """Settings that require a signed token for the web pages, which show the logs of executors."""
        key = base64.urlsafe_b64encode(self.password.encode()).decode()
        return {"spark.ui.filters": _WEB_FILTER, f"spark.{_WEB_FILTER}.param.secretKey": key}

    @property
    def web_token(self) -> str:
        """A JSON web token for the header `Authorization: Bearer …`."""
        signed = ".".join(_base64(part) for part in (b'{"alg":"HS256"}', b'{"sub":"headrace"}'))
        return f"{signed}.{_base64(hmac.digest(self.password.encode(), signed.encode(), 'sha256'))}"

    @property
    def hosts(self) -> list[str]:
        return [node.host for node in self.nodes if isinstance(node, Worker)]

    @property
    def session(self) -> dict[str, str]:
        """Options of a small session whose first job waits until every host has an executor."""
        return {
            "spark.master": self.address,
            **self.authentication,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.cores.max": str(self.workers * self.cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        }

    @property
    def jars(self) -> list[Path]:
        """The jars that pyspark ships."""
        return [pyspark_install.folder() / "jars" / "*"]

    def settings(self) -> dict[str, Any]:
        more = {"workers": self.workers, "cores": self.cores, "memory": self.memory, "webuis": self.webuis}
        return {**super().settings(), **more}
