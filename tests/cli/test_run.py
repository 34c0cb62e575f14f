"""The command from end to end: what a user types, what is stored, what is said, how it ends."""

import json
import subprocess
import sys
import textwrap
import time

import duckdb
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

import headrace as hr
from headrace.testing import compare
from support.command_line import SOON, HeadraceProcess

APP = """
    import headrace as hr
    from headrace import sinks
    {more}

    clicks = hr.Pipeline(
        name="clicks",
        source=hr.Kafka("{bootstrap}", topics=["{topic}"], format=hr.Json("id BIGINT, page STRING")),
        transform=lambda rows: rows.where("page IS NOT NULL").withColumn("page", shout("page")),
        sink=sinks.DuckDB("{path}", table="clicks"),
        guarantee="exactly-once",
        limits=hr.Limits(max_records=60),
    )
"""

UPPER = "from pyspark.sql.functions import upper as shout"
FUNCTION = """
from pyspark.sql.functions import udf
from pyspark.sql.types import StringType

def shouted(text):
    return text.upper()

shout = udf(shouted, StringType())
"""

TOML = """
    name = "clicks"
    guarantee = "exactly-once"
    [source]
    kafka = "${{BROKER}}"
    topics = ["{topic}"]
    format = {{ json = "id BIGINT, page STRING" }}
    [transform]
    sql = "SELECT id, upper(page) AS page, current_timezone() AS zone FROM rows WHERE page IS NOT NULL"
    [sink]
    parquet = "{path}"
    [limits]
    max_records = 60
    [spark]
    spark.sql.session.timeZone = "Asia/Tokyo"
"""


def write(file, text, /, **values):
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(text).format(**{"more": UPPER, **values}))
    return file


def clicks(first, until):
    return [{"id": number, "page": f"page {number}"} for number in range(first, until)]


def shouted(first, until):
    return [(number, f"PAGE {number}") for number in range(first, until)]


def in_duckdb(path):
    with duckdb.connect(str(path)) as connection:
        return connection.execute("SELECT id, page FROM clicks").fetchall()


def test_a_pipeline_with_a_python_function_is_carried_out_from_wherever_it_is_started(topic, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))  # which remembers where a pipeline's files were
    where = topic(partitions=2)
    where.produce([*clicks(0, 150), {"id": -1}])
    app = write(
        tmp_path / "elsewhere" / "app.py",
        APP,
        bootstrap=where.bootstrap,
        topic=where.name,
        path=tmp_path / "x.duckdb",
        more=FUNCTION,
    )
    with HeadraceProcess(
        "run", f"{app}:clicks", "--until", "caught-up", "--log-format", "json", "--fail-fast", cwd=tmp_path
    ) as run:
        done = run.finish()
        assert done.code == 0, (done.out, done.err)
        assert run.nothing_is_left()
    difference = compare(shouted(0, 150), in_duckdb(tmp_path / "x.duckdb"))
    assert (difference.missing, difference.duplicate, difference.phantom) == (0, 0, 0)
    named = [event["event"] for event in done.events]
    assert named[:2] == ["RunStarted", "PartitionsFound"]
    assert named.count("BatchDone") == 3
    assert named[-2:] == ["CaughtUp", "RunStopped"]
    assert {event["pipeline"] for event in done.events} == {"clicks"}
    assert done.events[0]["guarantee"] == "exactly-once"
    assert done.events[-1]["records"] == 151
    assert done.events[-1]["error"] is None
    assert done.err == ""


@pytest.fixture
def toml(topic, tmp_path, monkeypatch):
    """A pipeline without Python code, from a topic into Parquet."""
    where = topic(partitions=2)
    monkeypatch.setenv("BROKER", where.bootstrap)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    return where, write(tmp_path / "clicks.toml", TOML, topic=where.name, path=tmp_path / "out")


def in_parquet(path):
    return duckdb.sql(f"SELECT id, page, zone FROM read_parquet('{path}/headrace_batch=*/*.parquet')").fetchall()


def test_a_toml_pipeline_carries_everything_into_parquet_and_goes_on_where_it_was(toml, spark, tmp_path, cli):
    where, file = toml
    where.produce([*clicks(0, 100), {"id": -1}])
    with HeadraceProcess("run", file, "--until", "caught-up", cwd=tmp_path) as run:
        done = run.finish()
    assert done.code == 0, (done.out, done.err)
    assert sorted(in_parquet(tmp_path / "out")) == [(*row, "Asia/Tokyo") for row in shouted(0, 100)]
    assert (tmp_path / "state" / "offsets.db").is_file()
    lines = done.out.splitlines()
    assert all(line[8:].startswith(" clicks ") for line in lines)
    assert "started: exactly-once (begin, write, commit)" in lines[0]
    assert lines[-1].endswith("stopped after 2 batches, 101 records, 100 rows written")

    where.produce(clicks(100, 130))
    again = cli("run", file, "--until", "caught-up")
    assert again.code == 0
    assert again.out.splitlines()[-1].endswith("stopped after 1 batch, 30 records, 30 rows written")
    assert compare(shouted(0, 130), [row[:2] for row in in_parquet(tmp_path / "out")]) == compare([], [])


MOVED = """
name = "moved"
guarantee = "exactly-once"
[source]
kafka = "{where.bootstrap}"
topics = ["{where.name}"]
format = {{ json = "id BIGINT, page STRING" }}
[sink]
sqlite = "rows.db"
table = "clicks"
"""


def test_a_run_whose_table_is_not_there_says_where_the_last_run_had_it(topic, spark, cli, tmp_path, monkeypatch):
    where = topic(partitions=1)
    where.produce(clicks(0, 10))
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    old, new = (write(tmp_path / name / "clicks.toml", MOVED, where=where) for name in ("old", "new"))
    note = f"last run used {old.parent}/rows.db; this one is {new.parent}/rows.db, which does not exist yet"
    assert "last run used" not in cli("run", old, "--until", "caught-up").out
    assert note in cli("check", new).out
    assert f"note: {note}" in cli("run", new, "--until", "caught-up").out
    assert "last run used" not in cli("run", new, "--until", "caught-up").out


# check


def test_check_says_what_a_pipeline_does_and_why_its_guarantee_holds(spark, topic, cli, tmp_path):
    where = topic(partitions=1)
    at = {"bootstrap": where.bootstrap, "topic": where.name}
    app = write(tmp_path / "app.py", APP, **at, path=tmp_path / "x.duckdb")
    done = cli("check", f"{app}:clicks")
    assert done.code == 0
    first, *rest = done.out.splitlines()
    assert first == "clicks: exactly-once: rows and offsets move in one transaction of the sink"
    assert f"{where.name} on {where.bootstrap}, from earliest, Json" in done.out
    assert "id bigint, page string" in done.out
    assert rest[0].split() == ["steps", "write"]
    assert not (tmp_path / "x.duckdb").exists()


def test_check_for_machines_is_json(toml, spark, cli, tmp_path):
    _, file = toml
    done = cli("check", file, "--json")
    report = json.loads(done.out)
    assert done.code == 0
    assert report["guarantee"] == "exactly-once"
    assert report["steps"] == ["begin", "write", "commit"]
    assert report["columns"] == ["id bigint", "page string", "zone string"]
    assert str(tmp_path / "state" / "offsets.db") in report["offsets"]
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "out").exists()


# how it ends


def test_the_version_is_printed():
    command = [sys.executable, "-m", "headrace.cli.main", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"headrace {hr.__version__}\n", "")


def test_help_documents_the_exit_codes(cli):
    done = cli("--help")
    assert done.code == 0
    text = " ".join(done.out.replace("│", " ").split())
    assert "0 success, 1 failure, 2 usage error, 3 another run is active, 4 data loss" in text


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "app.py", "--until", "done"], ["rum"], ["run", "app.py", "--drain", "-1"]]
)
def test_a_usage_error_is_exit_code_2(cli, arguments):
    done = cli(*arguments)
    assert done.code == 2
    assert "Usage:" in done.err


def test_a_file_that_another_process_has_open_is_exit_code_3(topic, spark, cli, tmp_path):
    where = topic(partitions=1)
    where.produce(clicks(0, 3))
    path = tmp_path / "x.duckdb"
    app = write(tmp_path / "app.py", APP, bootstrap=where.bootstrap, topic=where.name, path=path)
    script = f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "open\n"
        done = cli("run", app, "--until", "caught-up")
        holder.communicate("\n", timeout=SOON)
    assert done.code == 3
    assert str(path) in done.line("error: ")
    assert "stop the other run" in done.line("hint: ")


def test_offsets_that_are_gone_are_exit_code_4_and_nothing_is_written(topic, kafka, spark, cli, tmp_path):
    where = topic(partitions=1)
    where.produce(clicks(0, 10))
    app = write(tmp_path / "app.py", APP, bootstrap=where.bootstrap, topic=where.name, path=tmp_path / "x.duckdb")
    assert cli("run", app, "--until", "caught-up").code == 0
    where.produce(clicks(10, 30))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(where.name, 0, 25)]).values():
        future.result(SOON)
    done = cli("run", app, "--until", "caught-up")
    assert done.code == 4
    assert f"{where.name}[0] [10, 25)" in done.line("error: ")
    assert done.line("hint: ")
    assert sorted(in_duckdb(tmp_path / "x.duckdb")) == shouted(0, 10)


def test_a_recreated_topic_is_exit_code_4_though_its_log_is_longer(topic, spark, cli, tmp_path, kafka):
    where = topic(partitions=1)
    where.produce(clicks(0, 10))
    app = write(tmp_path / "app.py", APP, bootstrap=where.bootstrap, topic=where.name, path=tmp_path / "x.duckdb")
    assert cli("run", app, "--until", "caught-up").code == 0
    where.delete()
    anew = _made_again(where)
    anew.produce(clicks(100, 200))
    done = cli("run", app, "--until", "caught-up")
    assert done.code == 4
    assert "created again" in done.line("error: ")
    assert sorted(in_duckdb(tmp_path / "x.duckdb")) == shouted(0, 10)


def _made_again(old):
    """Deleting takes the broker a moment."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            return type(old)(old.bootstrap, old.name, old.partitions, {})
        except KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.05)
