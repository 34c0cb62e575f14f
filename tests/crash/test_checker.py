"""Tests the checker: it must find each anomaly that is inserted manually, and each part that is broken on purpose."""

import pytest

from crash.pipelines import TARGET, record
from crash.runs import drained
from headrace.testing import Difference, compare, kill_at_every_point
from headrace.testing.crash import NothingBroken, RunFailed

SENT = [tuple(record(number).values()) for number in range(100)]


def test_equal_ledgers_show_no_difference():
    assert compare(SENT, reversed(SENT)) == Difference(missing=0, duplicate=0, phantom=0)


@pytest.mark.parametrize("place", [0, 50, 99], ids=["first", "middle", "last"])
def test_a_lost_row_shows(place):
    assert compare(SENT, SENT[:place] + SENT[place + 1 :]) == Difference(missing=1, duplicate=0, phantom=0)


@pytest.mark.parametrize("place", [0, 50, 99], ids=["first", "middle", "last"])
def test_a_duplicate_shows(place):
    assert compare(SENT, [*SENT, SENT[place]]) == Difference(missing=0, duplicate=1, phantom=0)


def test_a_loss_is_not_made_good_by_a_duplicate():
    assert compare(SENT, [*SENT[1:], SENT[1]]) == Difference(missing=1, duplicate=1, phantom=0)


def test_a_row_stored_three_times_counts_as_two_duplicates():
    assert compare(SENT, [*SENT, SENT[7], SENT[7]]) == Difference(missing=0, duplicate=2, phantom=0)


def test_a_row_that_was_never_sent_shows():
    assert compare(SENT, [*SENT, (100, "phantom")]) == Difference(missing=0, duplicate=0, phantom=1)


def test_a_corrupted_value_shows():
    corrupted = [*SENT[:-1], (99, "garbled")]
    assert compare(SENT, corrupted) == Difference(missing=1, duplicate=0, phantom=1)


def test_a_sink_that_lost_everything_shows():
    assert compare(SENT, []).missing == len(SENT)


def test_a_send_of_unknown_outcome_may_arrive_once_or_not_at_all(case_on):
    _, feed = case_on("duckdb")
    feed.acknowledged, feed.unknown = SENT[:90], SENT[90:]

    assert feed.compare(SENT[:90]) == feed.compare(SENT) == Difference(missing=0, duplicate=0, phantom=0)
    assert feed.compare([*SENT, SENT[-1]]) == Difference(missing=0, duplicate=1, phantom=0)


@pytest.mark.parametrize(
    ("kind", "anomalies"),
    [
        ("a sink that claims to be idempotent", {"duplicate"}),
        ("a store without a journal", {"duplicate"}),
        ("a store that moves offsets early", {"missing"}),
    ],
)
def test_kills_find_out(kind, anomalies, case_on, spark):
    case, feed = case_on(kind)

    kill_at_every_point(TARGET, feed=lambda: feed.send(20), environment=case.environment, spark=spark)

    difference = feed.compare(drained(case, spark))
    assert {name for name in ("missing", "duplicate", "phantom") if getattr(difference, name)} == anomalies


def test_a_suite_whose_kills_hit_no_batch_fails(case_on, spark):
    case, _ = case_on("duckdb")

    with pytest.raises(NothingBroken, match="no run died"):
        kill_at_every_point(TARGET, feed=lambda: None, environment=case.environment, spark=spark)


def test_a_suite_whose_runs_fail_by_themselves_fails(case_on, spark):
    case, feed = case_on("duckdb")
    unreadable = {**case.environment, "CRASH": case.environment["CRASH"].replace(case.topic, "nowhere")}

    with pytest.raises(RunFailed, match="nowhere"):
        kill_at_every_point(TARGET, feed=lambda: feed.send(1), environment=unreadable, spark=spark)
