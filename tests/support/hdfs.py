"""Runs a real HDFS for tests: a NameNode and a DataNode, from the jars of HBase that other tests use."""

from pathlib import Path
from xml.sax.saxutils import escape

from pyspark.errors import AnalysisException

from headrace.dev import jvm
from headrace.dev import ports as loopback
from headrace.dev.hbase import HBASE, OPENS
from headrace.dev.node import Node
from headrace.dev.single_port_server import SinglePortServer

_SOURCE = Path(__file__).with_name("Hdfs.java")
_NOWHERE = f"{loopback.HOST}:0"


class NameNode(Node):
    def __init__(self, server):
        super().__init__("hdfs", server.directory, {"client": server.port})
        self._server = server

    def prepare(self):
        settings = {
            "fs.defaultFS": self._server.address,
            "dfs.namenode.name.dir": (self.directory / "names").as_uri(),
            "dfs.datanode.data.dir": (self.directory / "data").as_uri(),
            "dfs.namenode.http-address": _NOWHERE,
            "dfs.datanode.address": _NOWHERE,
            "dfs.datanode.http.address": _NOWHERE,
            "dfs.datanode.ipc.address": _NOWHERE,
            "dfs.namenode.safemode.extension": 0,
            "dfs.permissions.enabled": "false",
        }
        site = "".join(
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
            for name, value in settings.items()
        )
        for name in ("hdfs", "datanode", "static"):  # folders of its web pages, which the jars lack
            (self.directory / "webapps" / name).mkdir(parents=True, exist_ok=True)
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.directory / name).write_text(f"<configuration>{site}</configuration>")

    def command(self):
        flags = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENS]
        classpath = [self.directory, *self._server.jars]
        return jvm.run_source(_SOURCE, str(self.directory / "names"), jars=classpath, heap="256m", flags=flags)

    def is_ready(self):
        return self.alive and self.process.logged("HDFS is ready")


class Hdfs(SinglePortServer):
    name = "hdfs"
    variable = "HDFS_URL"
    usual_port = 8020
    bundles = (HBASE,)

    def make_nodes(self):
        return [NameNode(self)]

    @property
    def address(self):
        return f"hdfs://{loopback.HOST}:{self.port}"


def rows_at(url, *columns):
    """The rows that Spark reads below a path; empty if the path does not exist."""
    from pyspark.sql import SparkSession

    try:
        return [tuple(row) for row in SparkSession.getActiveSession().read.parquet(url).select(*columns).collect()]
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            return []
        raise
