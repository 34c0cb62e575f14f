"""Dev servers on a machine with other users: they cannot log in, read files, or see the environment."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from typer.testing import CliRunner

from headrace import dev
from headrace.cli.dev import app
from headrace.dev import ports, postgres, running_servers
from headrace.support.paths import private_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.dev.single_port_server import SinglePortServer

OTHER_USER = 54_321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try what another user can do")
LOGIN = """
import json, os, socket, sys, urllib.parse
"".encode("idna")
import psycopg  # before the change of user, who may not be able to read this Python's files

os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
asked = json.load(sys.stdin)
found = {}
try:
    with psycopg.connect(asked["postgres"], connect_timeout=10) as connection:
        found["postgres"] = connection.execute("SELECT 1").fetchone()[0]
except psycopg.Error as error:
    found["postgres"] = str(error)
place = urllib.parse.urlsplit(asked["redis"])
with socket.create_connection((place.hostname, place.port), 10) as connection:
    if place.password:
        connection.sendall(f"AUTH {place.password}\\r\\n".encode())
        assert connection.recv(100) == b"+OK\\r\\n"
    connection.sendall(b"PING\\r\\n")
    found["redis"] = connection.recv(100).decode().strip()
print(json.dumps(found))
"""
READ = """
import json, os, sys

os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
readable = []
for path in json.load(sys.stdin):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
        readable.append(path)
    except (PermissionError, FileNotFoundError):
        pass
print(json.dumps(readable))
"""


def as_other_user(code: str, given: object) -> Any:
    command = [sys.executable, "-c", code, str(OTHER_USER)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can enter, unlike pytest's."""
    made = Path(tempfile.mkdtemp(prefix="headrace-shared-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    user, _, place = rest.partition("@")
    return f"{scheme}://{user.split(':')[0] + '@' if user.split(':')[0] else ''}{place}"


@needs_root
def test_another_user_can_neither_log_in_nor_read_a_file(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(shared / "state"))
    run = CliRunner()
    try:
        assert run.invoke(app, ["up", "postgres", "redis"]).exit_code == 0
        urls = {entry.name: entry.address for entry in running_servers.entries()}
        assert as_other_user(LOGIN, urls) == {"postgres": 1, "redis": "+PONG"}, "with the password everything works"

        refused = as_other_user(LOGIN, {name: without_password(url) for name, url in urls.items()})
        assert "no password supplied" in refused["postgres"]
        assert refused["redis"] == "-NOAUTH Authentication required."

        files = [str(path) for path in (shared / "state").rglob("*")]
        assert len(files) > 1000, "PostgreSQL alone has that many"
        assert as_other_user(READ, files) == []
        assert as_other_user(READ, [str(shared)]) == [str(shared)], "so what was refused was refused by our modes"
    finally:
        run.invoke(app, ["down"])


def modes(directory: Path) -> dict[str, str]:
    found = {str(path): path.lstat().st_mode for path in directory.rglob("*")}
    return {path: oct(mode) for path, mode in found.items() if mode & 0o077 and not path.endswith(".sock")}


@pytest.mark.parametrize("kind", [dev.Postgres, dev.Redis, dev.ZooKeeper, dev.Mongo], ids=lambda kind: str(kind.name))
def test_files_and_environment_of_a_server_are_for_its_owner(
    kind: type[SinglePortServer], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    with kind(shared / "server") as server:
        assert oct((shared / "server").stat().st_mode) == "0o40700"
        assert modes(shared / "server") == {}
        for node in server.nodes:
            given = psutil.Process(node.pid).environ()
            assert "canary" not in given.values()
            assert "HEADRACE_STATE" not in given


def test_passwords_of_the_secure_broker_are_in_no_argument_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, given = [], []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        files = [Path(word[1:]) for word in command if word.startswith("@")]
        given.extend((file, oct(file.stat().st_mode & 0o777), "canary" in file.read_text()) for file in files)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("headrace.dev.kafka.subprocess.run", run)
    server = dev.SecureKafka(tmp_path, users={"app": "canary"})
    server.certificate.make()
    broker = server.brokers[0]
    private_directory(broker.directory)
    broker.prepare()
    ((file, *found),) = given
    assert found == ["0o600", True]
    assert not file.exists()
    assert commands, "keytool's and the formatting"
    assert "canary" not in str([*commands, broker.command()])
    assert "canary" not in broker.environment().values()
    assert modes(broker.directory) == {}


def test_data_of_a_version_without_passwords_gets_one(tmp_path: Path) -> None:
    import psycopg

    with dev.Postgres(tmp_path) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE kept (v int)")
        connection.execute("ALTER ROLE postgres PASSWORD NULL")
    rules = tmp_path / "data" / "pg_hba.conf"
    rules.write_text(rules.read_text().replace("scram-sha-256", "trust"))
    with dev.Postgres(tmp_path) as server:
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(without_password(server.dsn))
    assert postgres.account() is None or rules.stat().st_uid == postgres.account().user  # type: ignore[union-attr]


def test_up_and_status_do_not_print_a_password_and_env_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    run = CliRunner()
    try:
        up = run.invoke(app, ["up", "redis"])
        assert up.exit_code == 0, repr(up.exception)
        (entry,) = running_servers.entries()
        password = (running_servers.root() / "redis" / "password").read_text()
        assert entry.address == f"redis://:{password}@{ports.HOST}:{entry.nodes[0].ports['client']}/0"
        shown = entry.address.replace(password, "***")
        assert up.stdout == f"redis {shown}\n"
        assert 'eval "$(headrace dev env)"' in up.stderr
        for said in (up.output, run.invoke(app, ["up", "redis"]).output, run.invoke(app, ["status"]).output):
            assert shown in said
            assert password not in said
        machine = run.invoke(app, ["status", "--json"]).output
        assert password not in machine
        assert json.loads(machine)[0]["address"] == shown
        assert run.invoke(app, ["env"]).output == f"export REDIS_URL={entry.address}\n"
    finally:
        run.invoke(app, ["down"])


def test_spark_refuses_a_driver_without_the_secret_and_web_pages_ask_for_a_token(spark_cluster: dev.Spark) -> None:
    body = b"let me in"
    message = struct.pack("!BQI", 3, 1, len(body)) + body  # an RPC, of which the first must be the secret
    with socket.create_connection((ports.HOST, spark_cluster.port), 10) as connection:
        connection.sendall(struct.pack("!Q", len(message) + 8) + message)
        assert b"Expected SaslMessage" in connection.recv(4096)
    for node in spark_cluster.nodes:
        host = node.host  # type: ignore[attr-defined]
        with closing(http.client.HTTPConnection(host, node.ports["webui"], timeout=10)) as connection_:
            connection_.request("GET", "/json/")
            assert connection_.getresponse().status == 403
        process = psutil.Process(node.pid)
        assert spark_cluster.password not in " ".join(process.cmdline())
        assert spark_cluster.password not in process.environ().values()
        assert modes(node.directory) == {}
