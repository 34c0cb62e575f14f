"""Keyed stores: a run is frozen during a write, its successor writes newer values, and the first run resumes."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from crash.pipelines import UPSERTING
from crash.runs import Run, drained

pytestmark = pytest.mark.timeout(600)


@pytest.mark.matrix(sample=2)
@pytest.mark.parametrize("kind", UPSERTING)
def test_a_run_that_wakes_up_puts_no_older_value_over_a_newer_one(kind, case_on, spark):
    case, feed = case_on(kind, max_records=300)

    with feed.flowing(rate=300), Run(case) as zombie:
        zombie.wait_for(lambda: len(zombie.done) >= 2)
        paused_while_it_writes(zombie, case)
        with Run(case, "--take-over") as successor:
            successor.wait_for_more(batches=3)
            # The values that it has yet to write are now older than the stored ones, for every key.
            zombie.resume()
            assert zombie.exit_code() == 3, str(zombie)
            assert zombie.failure == "OffsetConflict", str(zombie)
            assert successor.stop() == 0, str(successor)

    newest = {number % 8: (number, value) for number, value in sorted(feed.acknowledged)}
    assert len(newest) == 8
    assert sorted(drained(case, spark)) == sorted(newest.values())


def paused_while_it_writes(run, case):
    """Pause it with a batch that is journalled but not committed, and without a lock on its store, for which the
    successor would wait."""
    for _ in range(50):
        run.wait_for(lambda: run.open_batch)
        time.sleep(0.05)  # the event comes before the journal is written, which is checked below
        run.pause()
        if run.open_batch and not locked(Path(case.directory) / "offsets.db") and case.progress().pending:
            return
        finished = len(run.done)
        run.resume()
        run.wait_for(lambda before=finished: len(run.done) > before)
    raise AssertionError("the run was never met while it writes")


def locked(file):
    if not file.exists():  # the offsets are in another store
        return False
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
    return False
