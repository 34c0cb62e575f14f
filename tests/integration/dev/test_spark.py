"""The dev server for Spark: workers that are different hosts, a session that runs on both of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

from headrace import dev

if TYPE_CHECKING:
    from pathlib import Path

SESSION = """
import json, sys
from headrace.spark import session

spark = session.create(json.loads(sys.argv[1]))
context = spark.sparkContext


def host(_):
    import os, time

    time.sleep(0.2)  # long enough for the other executor to take the other half
    yield os.environ["SPARK_LOCAL_IP"]


found = context.parallelize(range(4), 4).mapPartitions(host).collect()
infos = context._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps({"known": sorted({info.host() for info in infos}), "tasks": sorted(set(found))}))
spark.stop()
"""


def test_a_session_runs_its_tasks_on_both_hosts(spark_cluster: dev.Spark) -> None:
    # The secret by the environment, as `headrace dev env` exports it: everybody on the machine can read arguments.
    options = {name: value for name, value in spark_cluster.session.items() if "authenticate" not in name}
    command = [sys.executable, "-c", SESSION, json.dumps(options)]
    known = os.environ | spark_cluster.environment
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert spark_cluster.hosts == ["127.0.0.1", "127.0.0.2"]
    assert found == {"known": spark_cluster.hosts, "tasks": spark_cluster.hosts}


def test_a_worker_that_is_killed_comes_back_and_nobody_else_can_reach_the_cluster(spark_cluster: dev.Spark) -> None:
    *_, worker = spark_cluster.nodes
    before = worker.pid
    worker.kill()
    worker.start()
    assert worker.pid != before
    heard = {
        connection.laddr.ip.removeprefix("::ffff:")
        for node in spark_cluster.nodes
        for connection in psutil.Process(node.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert heard == {"127.0.0.1", "127.0.0.2"}


def test_the_same_cluster_is_found_again_by_its_settings(tmp_path: Path) -> None:
    server = dev.Spark(tmp_path, memory="512m")
    again = dev.Spark.from_record(tmp_path, json.loads(json.dumps(server.settings())))
    assert (again.address, again.webuis, again.memory, again.hosts) == (
        server.address,
        server.webuis,
        "512m",
        server.hosts,
    )
    assert server.environment == {"SPARK_MASTER": server.address, "_SPARK_AUTH_SECRET": server.password}
    assert again.password == server.password
