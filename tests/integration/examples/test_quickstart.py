"""The quickstart of the README, and the demo's producer, as a new user meets them."""

import re
import shutil
import sqlite3
import subprocess
import sys
import time
from array import array

import duckdb
import pytest

from support.command_line import SOON, HeadraceProcess
from support.project import ROOT


@pytest.fixture
def project(topic, tmp_path, monkeypatch):
    """The example in a folder of its own, which reads a topic of its own."""
    where = topic(partitions=4)
    (tmp_path / "examples").mkdir()
    text = (ROOT / "examples" / "clicks.toml").read_text()
    (tmp_path / "examples" / "clicks.toml").write_text(
        text.replace('topics = ["clicks"]', f'topics = ["{where.name}"]')
    )
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("KAFKA_BOOTSTRAP", where.bootstrap)
    monkeypatch.chdir(tmp_path)
    return where


def rows(path):
    if not path.exists():
        return 0
    with sqlite3.connect(path) as connection:
        try:
            return connection.execute("SELECT count(*) FROM clicks").fetchone()[0]
        except sqlite3.OperationalError:
            return 0  # not created yet


def test_lag_and_rows_of_the_quickstart_can_be_seen_while_it_runs(project, cli, tmp_path):
    bash = shutil.which("bash")
    assert cli("produce", project.name, "--sample", "clicks", "--count", "1000").code == 0
    with HeadraceProcess("run", "examples/clicks.toml", cwd=tmp_path) as run:
        run.wait_for(lambda: rows(tmp_path / "examples" / "clicks.db") == 1000)
        lag = cli("offsets", "lag", "examples/clicks.toml")
        assert lag.code == 0, lag
        assert re.search(r"^total +0 +0\.0 *$", lag.out, re.MULTILINE), lag.out
        assert "running: pid" in cli("offsets", "show", "examples/clicks.toml").out
        (command,) = re.findall(r"^python -c .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
        look = subprocess.run(
            [bash, "-c", command.replace("python", sys.executable, 1)], capture_output=True, text=True, check=True
        )
        assert sum(int(count) for count in re.findall(r", (\d+)\)", look.stdout)) == 1000
        assert run.process.poll() is None


def test_the_producer_of_the_demo_stays_within_its_limits(topic, tmp_path):
    where = topic(partitions=1)
    ledger = tmp_path / "ids"
    ledger.touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.demo.producer", where.bootstrap, where.name, "1000", "100000", str(ledger)],
        stdin=subprocess.PIPE,
    )
    try:
        process.stdin.write(b"300\n")
        process.stdin.flush()
        deadline = time.monotonic() + SOON
        while ledger.stat().st_size < 300 * 8:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.stdin.write(b"1000\n")
        process.stdin.flush()
        assert process.wait(SOON) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
    produced = array("q")
    produced.frombytes(ledger.read_bytes())
    assert sorted(produced) == list(range(1000))


@pytest.mark.timeout(900)
def test_the_demo_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with HeadraceProcess("demo", "--events", "3000", "--kills", "1", "--seed", "7", "--keep", cwd=tmp_path) as demo:
        done = demo.finish(6 * SOON)
    assert done.code == 0, done
    first, *_, last = done.out.splitlines()
    assert first.startswith("3,000 clicks go from Kafka through Spark into DuckDB while the pipeline is killed once;")
    assert last == "verified: 3,000 rows, 0 missing, 0 duplicate"
    assert re.findall(r"^kill (\d+): SIGKILL", done.out, re.MULTILINE) == ["1"]
    (kept,) = tmp_path.glob("headrace-demo-*")
    with duckdb.connect(str(kept / "clicks.duckdb"), read_only=True) as connection:
        assert connection.sql("SELECT count(*), count(DISTINCT id), max(id) FROM clicks").fetchall() == [
            (3000, 3000, 2999)
        ]
