"""The example with a warehouse: clicks with what they were about, a folder per day, whole batches or none."""

import runpy
import shutil
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import duckdb
import pytest

from headrace import stores
from headrace.errors import BatchRefused
from headrace.support.pipeline_folder import relative_paths_in
from headrace.tools import samples
from support.project import ROOT

EXAMPLE = ROOT / "examples" / "warehouse"
DAY = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def warehouse(kafka, topic, tmp_path, monkeypatch):
    """The example on a topic of its own, with a copy of its articles, and the folder that it fills."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    for file in EXAMPLE.iterdir():
        shutil.copy(file, tmp_path)
    clicks = topic(partitions=2)
    with relative_paths_in(tmp_path):  # as `headrace run` loads it
        example = runpy.run_path(str(tmp_path / "pipeline.py"))["warehouse"]
    assert example.guarantee == "exactly-once"
    source = replace(example.source, topics=[clicks.name])
    made = replace(example, name=clicks.name, source=source, offsets=stores.Memory())
    return made, clicks, tmp_path / "clicks"


def query(folder, text):
    """As the README of the example asks."""
    files = f"read_parquet('{folder}/**/*.parquet', hive_partitioning = true)"
    return duckdb.sql(text.replace("FILES", files)).fetchall()


def test_every_click_is_stored_once_by_day_with_its_section(warehouse, spark, tmp_path, cli):
    made, clicks, folder = warehouse
    times = samples.spaced(DAY, timedelta(minutes=20))  # 150 of them: two days and two hours
    sent = [record.value for record in islice(samples.clicks(1, times), 150)]
    clicks.produce(sent[:100])
    made.run(until="caught-up", session=spark, fail_fast=True)
    (tmp_path / "articles.csv").write_text("page,section,author\n")  # an edited file counts from the next batch on
    clicks.produce(sent[100:])
    made.run(until="caught-up", session=spark, fail_fast=True)

    days = dict(query(folder, "SELECT CAST(day AS VARCHAR), count(*) FROM FILES GROUP BY ALL"))
    assert days == {"2026-03-01": 72, "2026-03-02": 72, "2026-03-03": 6}
    sections = Counter(row[0] for row in query(folder, "SELECT section FROM FILES WHERE day = '2026-03-01'"))
    assert set(sections) <= {"news", "sport", "culture", "science", "unknown"}
    assert len(sections) > 2
    assert query(folder, "SELECT DISTINCT section FROM FILES WHERE day = '2026-03-03'") == [("unknown",)]

    assert cli("compact", folder, "--execute").code == 0
    assert sum(days.values()) == query(folder, "SELECT count(*) FROM FILES")[0][0] == 150


def test_a_batch_with_too_many_clicks_without_a_user_is_not_published(warehouse, spark):
    made, clicks, folder = warehouse
    clicks.produce([{"page": "/articles/1", "at": "2026-03-01T00:00:00Z"}] * 5)
    with pytest.raises(BatchRefused):
        made.run(until="caught-up", session=spark, fail_fast=True)
    assert list(folder.rglob("*.parquet")) == []
