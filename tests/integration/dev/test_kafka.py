"""Dev servers: they answer when they are up, come back when killed, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from headrace import dev
from headrace.cli.dev import app
from headrace.dev import ports, running_servers
from headrace.dev.process import Process, ProcessId
from headrace.dev.server import silent
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def gone(pid: int | None) -> bool:
    assert pid is not None
    try:
        return ProcessId(pid, psutil.Process(pid).create_time()).find() is None
    except psutil.NoSuchProcess:
        return True


def create(bootstrap: str, topic: str, partitions: int, copies: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, copies)]).values():
        future.result(20)


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[str] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value().decode() for message in consumer.consume(count, 0.5) if message.error() is None]
    consumer.close()
    return found


def test_a_broker_that_is_killed_comes_back_on_its_port_with_its_data(tmp_path: Path) -> None:
    with dev.Kafka(tmp_path) as kafka:
        create(kafka.bootstrap, "t", 1)
        produce(kafka.bootstrap, "t", "before")
        (broker,) = kafka.brokers
        address, first = kafka.bootstrap, broker.pid

        broker.kill()
        assert gone(first)
        assert not broker.is_ready()
        # From a thread that ends at once: the broker belongs to the process, not to the thread.
        starter = threading.Thread(target=broker.start)
        starter.start()
        starter.join()

        assert (kafka.bootstrap, broker.pid != first) == (address, True)
        produce(kafka.bootstrap, "t", "after")
        assert consume(kafka.bootstrap, "t", 2) == ["before", "after"]
        last = broker.pid
    assert gone(last)


def test_a_cluster_of_three_survives_the_death_of_one(tmp_path: Path) -> None:
    with dev.Kafka(tmp_path, brokers=3, heap="384m") as kafka:
        assert len(set(kafka.bootstrap.split(","))) == 3
        create(kafka.bootstrap, "t", 3, copies=3)
        kafka.brokers[0].kill()
        produce(kafka.bootstrap, "t", *"abc")
        kafka.brokers[0].start()
        assert sorted(consume(kafka.bootstrap, "t", 3)) == ["a", "b", "c"]
        pids = [broker.pid for broker in kafka.brokers]
    assert all(gone(pid) for pid in pids)


def test_a_server_that_crashes_while_starting_is_an_error_with_the_tail_of_its_log(tmp_path: Path) -> None:
    kafka = dev.Kafka(tmp_path, options={"num.io.threads": "many"})
    with pytest.raises(ConfigError, match=r"num\.io\.threads"), kafka:
        pytest.fail("it started")
    assert not kafka.brokers[0].alive

    taken = dev.Kafka(tmp_path / "other")
    with socket.socket() as holder:
        holder.bind((ports.HOST, taken.brokers[0].ports["broker"]))
        holder.listen()
        with pytest.raises(ConfigError, match=r"kafka-1 stopped while starting(.|\n)*Address already in use"), taken:
            pytest.fail("it started")


def test_a_server_dies_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, threading; from headrace.dev.process import Process\n"
        "p = Process(pathlib.Path(sys.argv[1]))\n"
        "t = threading.Thread(target=lambda: p.spawn(['sleep', '600'], {'PATH': '/bin:/usr/bin'}, tied=True))\n"
        "t.start(); t.join(); print(p.identity.pid, flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        eventually(lambda: not gone(pid) and psutil.Process(pid).name() == "sleep")
        assert os.getsid(pid) != os.getsid(owner.pid)
        owner.kill()
    eventually(lambda: gone(pid))


def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        process = Process(tmp_path / "log")
        process.identity = ProcessId(stranger.pid, psutil.Process(stranger.pid).create_time() - 3600)
        assert not process.alive
        process.stop()
        process.kill()
        assert stranger.poll() is None
        stranger.kill()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    process = Process(tmp_path / "log")
    process.spawn([sys.executable, "-c", code], os.environ, tied=True)
    eventually(lambda: process.tail() == "deaf")
    process.stop(grace=0.2)
    assert not process.alive


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    yield tmp_path
    for name in running_servers.SERVERS:
        running_servers.down(name)


def test_up_status_env_and_down_tell_one_story(state: Path) -> None:
    run = CliRunner()
    (port,) = ports.free(1)

    up = run.invoke(app, ["up", "kafka", "--port", str(port)])
    assert up.exit_code == 0, up.output
    assert up.stdout == f"kafka 127.0.0.1:{port}\n"

    again = run.invoke(app, ["up", "kafka"])
    assert (again.exit_code, again.stdout) == (0, up.stdout)
    assert "already up" in again.stderr

    other = run.invoke(app, ["up", "kafka", "--brokers", "3"])
    assert isinstance(other.exception, ConfigError)
    assert other.exception.hint == "headrace dev down kafka"

    assert run.invoke(app, ["env"]).stdout == f"export KAFKA_BOOTSTRAP=127.0.0.1:{port}\n"
    (entry,) = json.loads(run.invoke(app, ["status", "--json"]).stdout)
    assert (entry["state"], entry["address"]) == ("up", f"127.0.0.1:{port}")
    (node,) = entry["nodes"]

    os.kill(node["pid"], signal.SIGKILL)
    eventually(lambda: gone(node["pid"]))
    crashed = run.invoke(app, ["status"])
    assert crashed.exit_code == 1
    assert "kafka-1 crashed" in crashed.stdout
    assert "Kafka Server started" in crashed.stdout
    assert isinstance(run.invoke(app, ["env"]).exception, ConfigError)

    revived = run.invoke(app, ["up", "kafka", "--port", str(port)])
    assert revived.stdout == up.stdout, repr(revived.exception)
    assert "crashed" in revived.stderr
    (entry,) = json.loads(run.invoke(app, ["status", "--json"]).stdout)

    assert run.invoke(app, ["down"]).exit_code == 0
    assert gone(entry["nodes"][0]["pid"])
    assert json.loads(run.invoke(app, ["status", "--json"]).stdout) == []
    assert "not up" in run.invoke(app, ["down", "kafka"]).stderr


def test_a_server_has_the_same_port_after_down_and_up(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(running_servers.SERVERS["redis"], "usual_port", taken.getsockname()[1])
        before, _ = running_servers.up("redis", port=None, nodes=None, progress=silent)
        running_servers.down("redis")
        after, already = running_servers.up("redis", port=None, nodes=None, progress=silent)
        assert (after.address, already) == (before.address, False)
        running_servers.down("redis")
        with socket.socket() as theirs:  # somebody else has it by now
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            theirs.bind(("127.0.0.1", before.nodes[0].ports[next(iter(before.nodes[0].ports))]))
            theirs.listen()
            other, _ = running_servers.up("redis", port=None, nodes=None, progress=silent)
        assert other.address != before.address


def test_an_unknown_server_is_named_with_those_that_exist(state: Path) -> None:
    error = CliRunner().invoke(app, ["up", "kofka"]).exception
    assert isinstance(error, ConfigError)
    assert "kofka" in error.message
    assert "kafka" in str(error.hint)
