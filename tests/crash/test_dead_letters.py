"""Each record that cannot be stored becomes a dead letter exactly once; all others become rows exactly once."""

import pytest

from crash.pipelines import POISON, TARGET, WITH_LETTERS
from crash.runs import drained
from headrace.testing import kill_at_every_point
from headrace.tools.dead_letters import DeadLetterAdmin


@pytest.mark.parametrize("kind", WITH_LETTERS)
def test_a_run_killed_at_every_point_has_every_row_and_every_letter_once(kind, case_on, spark):
    case, feed = case_on(kind)
    bad = []

    def both():
        feed.send(20)
        poison = f'{{"id": -1, "value": "poison {len(bad)}"}}'
        mark = (poison if kind == POISON else f"broken {len(bad)}").encode()
        feed.send_as_it_is(mark)
        bad.append(mark)
        feed.send(10)

    crashes = kill_at_every_point(TARGET, feed=both, environment=case.environment, spark=spark)
    stored = drained(case, spark)

    assert len(crashes) >= 5
    assert str(feed.compare(stored)) == "0 missing, 0 duplicate", crashes
    assert sorted(letter.value for letter in DeadLetterAdmin(case.pipeline()).letters()) == sorted(bad), crashes
