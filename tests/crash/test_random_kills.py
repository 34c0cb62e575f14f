"""Process groups are killed at random times while the producer continues."""

import pytest

from crash.pipelines import AT_RANDOM
from crash.runs import drained, kill_at_random

pytestmark = pytest.mark.timeout(900)  # whole processes, on a machine that may be busy


@pytest.mark.matrix(sample=4)
@pytest.mark.parametrize("kind", AT_RANDOM)
def test_runs_killed_at_random_times_store_every_record_once(kind, case_on, chance, spark):
    case, feed = case_on(kind)
    kills, deaths = case.parts.random_kills, []
    assert kills > 0

    with feed.flowing(rate=300):
        # Continue until a kill has hit an open batch.
        while len(deaths) < kills or not any(death.batch_open for death in deaths):
            assert len(deaths) < kills + 5, f"no kill hit an open batch: {deaths}"
            deaths.append(kill_at_random(case.limited(chance.randrange(50, 400)), feed, chance))
    stored = drained(case, spark)

    print(deaths)
    assert all(death.left > 0 for death in deaths), deaths
    assert str(feed.compare(stored)) == "0 missing, 0 duplicate", deaths
