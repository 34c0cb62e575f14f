"""What a task may do when Spark runs it once more."""

from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark import TaskContext

import headrace as hr
from headrace import sinks, stores
from headrace.engine.engine import DirectEngine
from headrace.errors import RetriableError
from headrace.spark import tasks
from headrace.spark.tasks import Report
from headrace.types import Batch

ROWS = [pa.RecordBatch.from_pydict({"id": [1, 2]}), pa.RecordBatch.from_pydict({"id": [3]})]


@pytest.fixture
def spark(monkeypatch):
    """Runs one task, as the attempt with this number; says what it left unread."""
    made = SimpleNamespace(attempt=0, left=[])

    def map_in_arrow(rows, function, schema):
        given = iter(rows)
        (answer,) = function(given)
        made.left = list(given)
        return SimpleNamespace(collect=answer.to_pylist)

    monkeypatch.setattr(tasks, "map_in_arrow", map_in_arrow)
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: made.attempt))
    return made


@pytest.mark.parametrize(("repeats", "attempt"), [(True, 0), (True, 1), (False, 0)])
def test_a_task_stores_its_rows(spark, repeats, attempt):
    spark.attempt, stored = attempt, []
    with tasks.retries_allowed(repeats):
        (report,) = tasks.run(ROWS, lambda batches: stored.extend(batches) or Report(3))
    assert (stored, report.rows) == (ROWS, 3)


def test_under_at_most_once_the_second_attempt_of_a_lost_task_stores_nothing(spark):
    """As on a cluster that has lost a host: Spark does not count that against spark.task.maxFailures."""
    spark.attempt, stored = 1, []
    with tasks.retries_allowed(False), pytest.raises(RetriableError, match="at-most-once repeats none"):
        tasks.run(ROWS, stored.extend)
    assert stored == spark.left == []


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
def test_the_guarantee_says_whether_tasks_may_be_repeated(guarantee, spark):
    spark.attempt, stored = 1, []

    def transform(_):
        tasks.run(ROWS, lambda batches: stored.extend(batches) or Report(3))
        raise OSError("the rest of the batch is not needed")

    pipeline = hr.Pipeline(
        name="clicks",
        source=hr.Kafka("nowhere:1", topics=["clicks"]),
        sink=sinks.Memory(),
        transform=transform,
        guarantee=guarantee,
        offsets=stores.Memory(),
    )
    with pytest.raises((OSError, RetriableError)):
        DirectEngine(Mock(), pipeline, Mock(by_name={})).write(Batch(1, ()))
    assert stored == (ROWS if guarantee == "at-least-once" else [])
    assert tasks.run(ROWS, lambda batches: Report(3)), "only while a batch is written"
