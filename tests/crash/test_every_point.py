"""For every guarantee and sink: die at every point, start again, count."""

import itertools
from pathlib import Path

import pytest

from crash.pipelines import environment, stored
from headrace.testing import compare, kill_at_every_point
from headrace.testing.crash import require_success, run

TARGET = f"{Path(__file__).parent / 'pipelines.py'}:crash"
CASES = [
    ("duckdb", "exactly-once"),
    ("duckdb", "at-least-once"),
    ("duckdb", "at-most-once"),
    ("parquet", "exactly-once"),
    ("parquet", "at-least-once"),
    ("parquet", "at-most-once"),
    ("appending", "at-least-once"),
    ("appending", "at-most-once"),
]


@pytest.mark.parametrize(("kind", "guarantee"), CASES)
def test_a_run_killed_at_every_point_keeps_its_guarantee(kind, guarantee, kafka, topic, spark, tmp_path):
    events = topic(partitions=2)
    settings = environment(kind, guarantee, kafka.bootstrap, events.name, tmp_path)
    numbers = itertools.count()

    def feed():
        events.produce([{"id": next(numbers)} for _ in range(60)])

    crashes = kill_at_every_point(TARGET, feed=feed, environment=settings, spark=spark)
    require_success(run(TARGET, environment=settings, spark=spark))

    points = [crash.point for crash in crashes]
    assert {"before write", "delivered"} <= set(points)
    if guarantee != "at-most-once" and kind != "duckdb":
        assert {"before begin", "before commit", "replay: before write", "replay: before commit"} <= set(points)
    sent = range(len(events.acknowledged))
    found = stored(kind, tmp_path)
    difference = compare(sent, found)
    assert difference.phantom == 0
    assert len(found) > 0
    if guarantee != "at-most-once" or kind == "duckdb":
        assert difference.missing == 0, (difference, points)
    if guarantee != "at-least-once" or kind != "appending":
        assert difference.duplicate == 0, (difference, points)
