"""A session of ours as a process: what others can see of it, where it listens, which tasks it repeats, and where its
workers find a user's files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.task_retries import OFF

SCRIPT = """
import json, os, sys
from pathlib import Path

import psutil

from headrace.runtime import config
from headrace.errors import ConfigError, RetriableError
from headrace.spark import tasks
from headrace.spark import session, task_retries

config.load("jobs/app3.py")
import app3

given = json.loads(sys.argv[1])
spark = session.create(given)
jvm = next(child for child in psutil.Process().children() if child.name() == "java")
attempts = Path("attempts")


def second_time(number):
    with attempts.open("a") as file:
        file.write("x")
    if attempts.stat().st_size == 1:
        raise ValueError("the first attempt fails")
    return number


def repeats():
    try:
        return spark.sparkContext.parallelize([1], 1).map(second_time).collect() == [1]
    except Exception:
        return False


def refused():
    try:
        task_retries.refuse_retries(spark)
    except ConfigError as error:
        return error.message


def stores_and_is_lost(batches):
    with Path("stored").open("a") as file:
        file.write("x" * sum(len(batch) for batch in batches))
    raise ValueError("the worker is lost")


def given_up():
    try:
        with tasks.retries_allowed(False):
            tasks.run(spark.range(3).coalesce(1), stores_and_is_lost)
    except RetriableError as error:
        return error.message


shouted = [row[0] for row in spark.range(1).select(app3.shout(app3.F.lit("ann"))).collect()]
repeated = repeats()
system = spark._jvm.System
scratch = [Path(spark.conf.get("spark.local.dir")), Path(system.getProperty("java.io.tmpdir"))]
family = psutil.Process().children(recursive=True)
print(json.dumps({
    "settings": dict(spark.sparkContext.getConf().getAll()),
    "commands": [child.cmdline() for child in family if child.status() != psutil.STATUS_ZOMBIE],
    "listening": sorted({c.laddr.ip for c in jvm.net_connections("inet") if c.status == psutil.CONN_LISTEN}),
    "scratch": [[str(path), path.stat().st_mode & 0o777] for path in scratch],
    "session": os.getsid(jvm.pid) == jvm.pid,
    "repeats": repeated,
    "refused": refused(),
    "given up": given_up(),
    "stored": Path("stored").stat().st_size,
    "shouted": shouted,
    "java": {name: system.getProperty(name) for name in ("headrace.test", "log4j2.configurationFile")},
}))
"""
APP = """
import headrace as hr
from headrace import sinks
from pyspark.sql import functions as F
from pyspark.sql.types import StringType


def _up(text):
    return text.upper()


shout = F.udf(_up, StringType())
clicks = hr.Pipeline(
    name="clicks",
    source=hr.Kafka("localhost:9092", topics=["clicks"], options="client.properties", format=hr.Avro("click.avsc")),
    transform=lambda rows: rows.select(shout("name")),
    sink=sinks.Memory(),
    guarantee="at-least-once",
)
"""
SCHEMA = '{"type": "record", "name": "Click", "fields": [{"name": "name", "type": "string"}]}'
SECRET = "p=ss: wörd\\#!\t${x}"


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """What a session with the master local[2,4] says of itself; started by a process of its own."""
    here = tmp_path_factory.mktemp("session")
    jobs = here / "jobs"
    jobs.mkdir()
    (jobs / "app3.py").write_text(APP)
    (jobs / "client.properties").write_text("client.id=clicks\n")
    (jobs / "click.avsc").write_text(SCHEMA)
    (here / "conf").mkdir()
    (here / "conf" / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dheadrace.test=kept\n")
    given = {"spark.master": "local[2,4]", "spark.hadoop.store.password": SECRET, **OFF}
    command = [sys.executable, "-c", SCRIPT, json.dumps(given)]
    environment = {**os.environ, "SPARK_CONF_DIR": str(here / "conf")}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_master_with_a_number_of_failures_repeats_a_task_and_is_refused(session):
    assert session["repeats"], "else there would be nothing to refuse"
    assert "spark.master=local[2,4]" in session["refused"]


def test_a_task_that_is_repeated_all_the_same_stores_nothing_under_at_most_once(session):
    assert "at-most-once repeats none" in session["given up"]
    assert session["stored"] == 3


def test_no_setting_is_an_argument_of_a_process(session):
    assert session["settings"]["spark.hadoop.store.password"] == SECRET
    assert session["commands"]
    assert [word for command in session["commands"] for word in command if "p=ss" in word or "--conf" in word] == []


def test_the_jvm_listens_on_the_loopback_alone_and_asks_for_a_secret(session):
    assert {address.removeprefix("::ffff:") for address in session["listening"]} == {"127.0.0.1"}
    assert session["settings"]["spark.authenticate"] == "true"


def test_files_that_spark_writes_meanwhile_are_in_a_directory_of_this_user(session):
    assert [mode for _, mode in session["scratch"]] == [0o700] * 2
    assert all(Path(path).name == f"headrace-{os.geteuid()}" for path, _ in session["scratch"])


def test_java_options_of_a_spark_defaults_file_are_kept(session):
    assert session["java"]["headrace.test"] == "kept"
    assert session["java"]["log4j2.configurationFile"].endswith("log4j2.properties")


def test_the_jvm_has_a_session_of_its_own(session):
    assert session["session"]


def test_workers_find_the_files_beside_a_users_file(session):
    assert session["shouted"] == ["ANN"]
