"""A run is frozen in the middle of a batch, another takes over, and the first one wakes up again."""

import pytest

from crash.runs import Run, drained

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("kind", ["postgres", "postgres by batch"])
def test_a_run_that_wakes_up_after_another_took_over_changes_nothing(kind, case_on, spark):
    case, feed = case_on(kind, max_records=300)

    with feed.flowing(rate=300), Run(case) as zombie:
        zombie.wait_for(lambda: len(zombie.done) >= 2)
        zombie.wait_for(lambda: zombie.open_batch)
        zombie.pause()
        with Run(case) as successor:
            successor.wait_for_more(batches=3)
            zombie.resume()
            assert zombie.exit_code() == 3, str(zombie)
            assert zombie.failure == "OffsetConflict", str(zombie)
            successor.wait_for_more(batches=2)
            assert successor.stop() == 0, str(successor)

    assert len(feed.acknowledged) > 0
    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"
