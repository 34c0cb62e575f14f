"""Effects with marks: a kill of the process group within a batch repeats or loses at most one effect per task."""

import pytest

from crash.runs import Run, drained, until

pytestmark = pytest.mark.timeout(600)

TASKS = 2  # partitions of the topic, and so concurrent tasks


@pytest.mark.parametrize("kind", ["foreach, once", "foreach, marked before"])
def test_a_kill_in_the_middle_of_a_batch_costs_at_most_one_effect_per_running_task(kind, case_on, spark):
    case, feed = case_on(kind, "at-least-once")
    feed.send(3_000)
    with Run(case) as run:
        run.wait_for(lambda: run.open_batch)
        # An effect takes two milliseconds, the batch some seconds.
        until(lambda: len(case.stored()) >= 200, seconds=60)
        run.kill()
    done = len(case.stored())
    assert 200 <= done < 3_000, "the kill broke nothing"
    assert not any(case.progress().offsets.values()), "the batch is to be repeated whole"

    difference = feed.compare(drained(case, spark))

    print(kind, done, difference)
    assert difference.phantom == 0
    if kind == "foreach, once":
        assert difference.missing == 0
        assert difference.duplicate <= TASKS, difference
    else:
        assert difference.duplicate == 0
        assert difference.missing <= TASKS, difference
