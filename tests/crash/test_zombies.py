"""A run is frozen in the middle of a batch, another run takes over, and the first one resumes."""

import psycopg
import pytest

from crash.runs import Run, drained, until

pytestmark = pytest.mark.timeout(600)

SESSIONS = """SELECT count(*) FILTER (WHERE state = 'active' AND query NOT LIKE 'COPY%%'),
    count(*) FILTER (WHERE state = 'idle in transaction')
    FROM pg_stat_activity WHERE application_name = 'headrace'"""


@pytest.mark.matrix(sample=2)
@pytest.mark.parametrize("kind", ["postgres", "postgres by batch", "kafka", "kafka by batch"])
def test_a_run_that_wakes_up_after_another_took_over_changes_nothing(kind, case_on, spark, request):
    case, feed = case_on(kind, max_records=300)

    with feed.flowing(rate=300), Run(case) as zombie:
        zombie.wait_for(lambda: len(zombie.done) >= 2)
        if kind.startswith("postgres"):
            paused_between_transactions(zombie, request.getfixturevalue("postgres"))
        else:
            paused_inside_a_batch(zombie)
        with Run(case, "--take-over") as successor:
            successor.wait_for_more(batches=3)
            zombie.resume()
            assert zombie.exit_code() == 3, str(zombie)
            assert zombie.failure == "OffsetConflict", str(zombie)
            successor.wait_for_more(batches=2)
            assert successor.stop() == 0, str(successor)

    assert len(feed.acknowledged) > 0
    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"


def paused_inside_a_batch(run):
    for _ in range(50):
        run.wait_for(lambda: run.open_batch)
        run.pause()
        if run.open_batch:
            return
        run.resume()
    raise AssertionError("the run was never met inside a batch")


def paused_between_transactions(run, postgres):
    """Pause inside a batch, but outside of a transaction of its driver: the server would abort that after a minute, and
    the run would resume as if it had just started."""
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        for _ in range(50):
            run.wait_for(lambda: run.open_batch)
            run.pause()
            # Requests that were in flight when it froze are answered first.
            until(lambda: connection.execute(SESSIONS).fetchone()[0] == 0, seconds=30)
            if run.open_batch and connection.execute(SESSIONS).fetchone()[1] == 0:
                return
            finished = len(run.done)
            run.resume()
            run.wait_for(lambda before=finished: len(run.done) > before)
    raise AssertionError("the run was never met inside a batch and outside a transaction")
