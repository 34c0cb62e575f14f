"""Where relative paths of a pipeline's file lead, and that a run says when it starts over elsewhere."""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructType

import headrace as hr
from headrace import sinks, stores
from headrace.kafka import client_options
from headrace.runtime import config, file_locations, launch
from headrace.support import pipeline_folder

SCHEMA = '{"type": "record", "name": "Click", "fields": [{"name": "id", "type": "int"}]}'
TOML = """
name = "clicks"
guarantee = "exactly-once"
[source]
kafka = "localhost:9092"
topics = ["clicks"]
format = { avro = "click.avsc" }
options = "client.properties"
[sink]
%s
[offsets]
sqlite = "state/offsets.db"
"""
PYTHON = """
import headrace as hr
from headrace import sinks, stores

clicks = hr.Pipeline(
    name="clicks",
    source=hr.Kafka("localhost:9092", topics=["clicks"], format=hr.Avro("click.avsc")),
    sink=sinks.Parquet("out"),
    offsets=stores.SQLite("state/offsets.db"),
    guarantee="exactly-once",
)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of a pipeline in a folder that is not the current one."""
    home = tmp_path / "jobs"
    home.mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (home / "click.avsc").write_text(SCHEMA)
    (home / "ca.pem").write_text("")
    (home / "client.properties").write_text(
        "ssl.truststore.location=ca.pem\nssl.truststore.type=PEM\nsecurity.protocol=SSL\n"
    )
    return home


@pytest.mark.parametrize("target", ["{folder}/clicks.toml", "../jobs/clicks.toml"])
@pytest.mark.parametrize(
    ("sink", "path"),
    [('parquet = "out"', "out"), ('delta = "out"', "out"), ('parquet = "/somewhere"', "/somewhere")],
)
def test_paths_of_a_toml_file_belong_to_its_folder(folder, target, sink, path):
    (folder / "clicks.toml").write_text(TOML % sink)
    pipeline = config.load(target.format(folder=folder)).pipeline
    assert pipeline.sink.local_path.resolve() == folder / path
    assert pipeline.store.local_path.resolve() == folder / "state" / "offsets.db"
    assert pipeline.source.format.schema == SCHEMA
    assert pipeline.source.options["ssl.truststore.location"].endswith("jobs/ca.pem")


@pytest.mark.parametrize(
    ("location", "path"),
    [("lake/clicks", "{folder}/lake/clicks"), ("/lake", "/lake"), ("s3a://lake/x", None), ("file:/lake", None)],
)
def test_the_location_of_a_hive_table_belongs_to_the_folder(folder, location, path):
    with pipeline_folder.relative_paths_in(folder):
        sink = sinks.Hive("clicks", location=location)
    statements = []
    spark = SimpleNamespace(
        sql=statements.append,
        conf=SimpleNamespace(get=lambda *_: "false", set=lambda *_: None),
        _jsparkSession=SimpleNamespace(sessionUUID=lambda: "a session"),
    )
    sink._create_table(spark, StructType().add("id", LongType()))
    (created,) = [text for text in statements if text.startswith("CREATE TABLE")]
    assert created.endswith(f" LOCATION '{(path or location).format(folder=folder)}'")


def test_the_folder_of_a_file_is_the_same_from_wherever_it_is_named(folder, tmp_path):
    (folder / "clicks.toml").write_text(TOML % 'parquet = "out"')
    assert config.load("../jobs/clicks.toml").pipeline.sink.local_path == folder / "out"
    (tmp_path / "elsewhere" / "link").symlink_to(folder)
    (folder.parent / "next.toml").write_text((TOML % 'parquet = "out"').replace("click.avsc", "jobs/click.avsc"))
    (folder.parent / "client.properties").write_text("")
    # To the system, `..` behind a link is the parent of the link's target, and not of the link.
    made = config.load("link/../next.toml").pipeline
    assert made.sink.local_path.resolve() == tmp_path / "out"


def test_a_keytab_belongs_to_the_folder_of_the_options_file(folder, monkeypatch):
    (folder / "kerberos.properties").write_text("sasl.kerberos.keytab=clicks.keytab\nssl.ca.location=probe\n")
    with pipeline_folder.relative_paths_in(folder):
        assert client_options.parse_options("kerberos.properties") == {
            "sasl.kerberos.keytab": f"{folder}/clicks.keytab",
            "ssl.ca.location": "probe",
        }
        assert client_options.parse_options({"sasl.kerberos.keytab": "x"}) == {"sasl.kerberos.keytab": f"{folder}/x"}


def test_paths_of_a_python_file_belong_to_its_folder(folder, monkeypatch):
    path = folder / "folder_app.py"
    path.write_text(textwrap.dedent(PYTHON))
    monkeypatch.delitem(sys.modules, "folder_app", raising=False)
    pipeline = config.load(str(path)).pipeline
    assert pipeline.sink.local_path == folder / "out"
    assert pipeline.store.local_path == folder / "state" / "offsets.db"
    assert repr(pipeline.store) == "stores.SQLite('state/offsets.db')"


@pytest.mark.parametrize(("of_a_worker", "code"), [({"PYTHON_WORKER_FACTORY_SECRET": "x"}, 0), ({}, 1)])
def test_a_worker_of_spark_finds_what_the_file_names_and_no_other_process(folder, monkeypatch, of_a_worker, code):
    (folder / "worker_app.py").write_text(textwrap.dedent(PYTHON))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
    monkeypatch.setenv("HEADRACE_FOLDER", "")
    config.load(str(folder / "worker_app.py"))
    script = "import worker_app; print(worker_app.clicks.sink.local_path)"
    environment = {**os.environ, **of_a_worker}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == (f"{folder}/out\n" if of_a_worker else "")


def test_paths_of_a_program_belong_to_the_current_directory(folder, tmp_path):
    assert sinks.DuckDB("x.duckdb", "t").local_path == tmp_path / "elsewhere" / "x.duckdb"


def pipeline(path, offsets=None):
    return hr.Pipeline(
        name="clicks",
        source=hr.Kafka("localhost:9092", topics=["clicks"]),
        sink=sinks.Parquet(path),
        offsets=offsets or stores.Memory(),
        guarantee="exactly-once",
    )


def test_a_run_that_starts_over_elsewhere_says_where_the_last_one_was(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    first, second = tmp_path / "x" / "clicks", tmp_path / "y" / "clicks"
    assert file_locations.paths_changed(pipeline(first)) == []
    assert not (tmp_path / "state").exists()
    file_locations.remember(pipeline(first, stores.SQLite(tmp_path / "x" / "offsets.db")))
    assert file_locations.paths_changed(pipeline(first)) == []
    assert file_locations.paths_changed(pipeline(second, stores.SQLite(tmp_path / "y" / "offsets.db"))) == [
        f"last run used {first}; this one is {second}, which does not exist yet",
        f"last run used {tmp_path}/x/offsets.db; this one is {tmp_path}/y/offsets.db, which does not exist yet",
    ]
    second.mkdir(parents=True)
    assert file_locations.paths_changed(pipeline(second)) == []


def test_it_is_reported_once_when_a_run_has_started(tmp_path, monkeypatch):
    from headrace import events

    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    file_locations.remember(pipeline(tmp_path / "x"))
    seen = []
    observe = launch._with_location_notes(pipeline(tmp_path / "y"), seen.append)
    started = events.RunStarted(hr.Guarantee.EXACTLY_ONCE, (), {})
    observe(started)
    note = events.Noted(f"last run used {tmp_path}/x; this one is {tmp_path}/y, which does not exist yet")
    assert seen == [started, note]
    assert file_locations.paths_changed(pipeline(tmp_path / "z"))[0].startswith(f"last run used {tmp_path}/y;")


def test_a_run_says_that_relative_paths_were_below_the_current_directory_before(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    (folder / "clicks.toml").write_text(TOML % 'parquet = "out"')
    loaded = config.load("../jobs/clicks.toml").pipeline
    assert file_locations.paths_changed(loaded) == []
    old = tmp_path / "elsewhere" / "out"
    old.mkdir()
    (note,) = file_locations.paths_changed(loaded)
    assert note.startswith(f"this run uses {loaded.sink.local_path}, which does not exist yet; there is {old}: ")
    file_locations.remember(loaded)
    assert file_locations.paths_changed(loaded) == []


@pytest.mark.parametrize("path", ["out", "{folder}/out"])
def test_nothing_is_reported_where_the_path_is_there_or_was_absolute(folder, tmp_path, monkeypatch, path):
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    (tmp_path / "elsewhere" / "out").mkdir()
    if path == "out":
        (folder / "out").mkdir()
    (folder / "clicks.toml").write_text(TOML % f'parquet = "{path.format(folder=folder)}"')
    assert file_locations.paths_changed(config.load("../jobs/clicks.toml").pipeline) == []
