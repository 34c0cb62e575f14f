"""For all guarantees, sinks and stores: kill at every point, start again, and count the rows."""

import pytest

from crash.pipelines import CASES, STORE_CASES, TARGET
from crash.runs import drained
from headrace.testing import kill_at_every_point


@pytest.mark.matrix(sample=12)
@pytest.mark.parametrize(("kind", "guarantee"), CASES + STORE_CASES)
def test_a_run_killed_at_every_point_keeps_its_guarantee(kind, guarantee, case_on, spark):
    case, feed = case_on(kind, guarantee)

    crashes = kill_at_every_point(TARGET, feed=lambda: feed.send(60), environment=case.environment, spark=spark)
    stored = drained(case, spark)

    points = [crash.point for crash in crashes]
    assert {"anchor", "before write", "delivered"} <= set(points)
    if not case.parts.transactional and guarantee != "at-most-once":
        assert {"before begin", "before commit", "replay: before write", "replay: before commit"} <= set(points)
    difference = feed.compare(stored)
    assert difference.phantom == 0, (difference, points)
    # Anomalies that a guarantee allows must occur: otherwise the kills interrupted nothing.
    assert (difference.missing > 0) == case.may_miss, (difference, points)
    assert (difference.duplicate > 0) == case.may_repeat, (difference, points)
