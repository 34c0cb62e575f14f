"""Two concurrent runs of one pipeline: one continues, the other stops and reports why."""

import json
from pathlib import Path

import pytest

from crash.runs import Run, drained, until
from headrace.errors import RetriableError
from headrace.types import Batch

pytestmark = pytest.mark.timeout(900)  # whole processes, on a machine that may be busy


@pytest.mark.matrix(sample=3)
@pytest.mark.parametrize("kind", ["duckdb", "parquet", "postgres", "postgres by batch", "delta", "kafka"])
def test_a_second_run_is_refused_and_one_that_takes_over_leaves_one_of_the_two(kind, case_on, spark):
    case, feed = case_on(kind, max_records=200)

    with feed.flowing(rate=300), Run(case) as first:
        first.wait_for(lambda: first.done)
        with Run(case) as refused:
            assert refused.exit_code() == 3, str(refused)
            # Only one process may open a DuckDB file, and DuckDB reports which one has it.
            assert kind == "duckdb" or f"is running already: pid {first.pid} on" in str(refused), str(refused)
        first.wait_for_more(batches=2)
        with Run(case, "--take-over") as second:
            second.wait_for(lambda: not (first.alive and second.alive))
            winner, loser = (first, second) if first.alive else (second, first)
            assert loser.exit_code() == 3, str(loser)
            assert loser.failure == "OffsetConflict", str(loser)
            winner.wait_for_more(batches=3)
            assert winner.stop() == 0, str(winner)

    assert len(feed.acknowledged) > 0
    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"


def test_a_run_that_wakes_up_after_another_took_over_stops_and_changes_nothing(case_on, spark):
    case, feed = case_on("parquet", max_records=200)

    with feed.flowing(rate=300), Run(case) as zombie:
        held = paused_inside_a_batch(zombie, case)
        with Run(case, "--take-over") as heir:
            heir.wait_for(lambda: len(heir.done) >= 3)
            assert heir.seen("BatchStarted")[0]["batch"]["ranges"] == held["ranges"], str(heir)
            assert heir.replayed
            assert heir.stop() == 0, str(heir)
        stored, progress = sorted(case.stored()), case.progress()

        zombie.resume()
        assert zombie.exit_code() == 3, str(zombie)
        assert zombie.failure == "OffsetConflict", str(zombie)
        assert zombie.open_batch == held, "it did more than the batch that it fell asleep with"
        assert (sorted(case.stored()), case.progress()) == (stored, progress)

    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"


def paused_inside_a_batch(run, case):
    """Pause the run when its batch is journalled but not published, and return the batch."""
    met = []
    for _ in range(50):
        finished = len(run.done)
        # When the journal has it, not at BatchStarted, which is logged just before.
        run.wait_for(lambda before=finished: len(run.done) > before and run.open_batch)
        until(lambda: not run.open_batch or pending(case), seconds=60)
        run.pause()
        batch, journalled = run.open_batch, pending(case)
        if batch and journalled and journalled.id == batch["id"] and not published(journalled, case).exists():
            # The check can fail: the file that it looks for exists for a finished batch.
            assert published(Batch.from_json(json.dumps(run.done[-1]["batch"])), case).is_dir()
            return batch
        met.append((batch and batch["id"], journalled and journalled.id))
        run.resume()
    raise AssertionError(f"the run was never met inside a batch (in the log, in the journal): {met}")


def pending(case):
    try:
        return case.progress().pending
    except RetriableError:
        return None  # paused inside a transaction of the store: no run could take over


def published(batch, case):
    return Path(case.directory, "rows", f"headrace_batch={case.name}-{batch.fingerprint}")
