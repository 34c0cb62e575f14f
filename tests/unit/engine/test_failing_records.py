"""Which records of a batch fail when each is alone: found by halving, and what does not fail costs little."""

import pytest
from pyspark.errors import PySparkException

from headrace.core.dead_letters import RecordId
from headrace.engine.failing_records import _row_error, bisect
from headrace.errors import BadRecord, RetriableError
from headrace.types import Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


class Failing:
    """Fails for every part that holds one of `bad`, and counts how often it was asked."""

    def __init__(self, *bad):
        self.bad = set(bad)
        self.asked = []

    def __call__(self, ranges):
        self.asked.append(ranges)
        assert all(len(r) for r in ranges)
        assert len({r.at for r in ranges}) == len(ranges)
        there = {(r.at, offset) for r in ranges for offset in range(r.start, r.until)}
        return ValueError(str(sorted(there & self.bad))) if there & self.bad else None


@pytest.mark.parametrize(
    "bad",
    [
        [(A, 0)],
        [(A, 99)],
        [(B, 57)],
        [(A, 5), (B, 55)],
        [(A, 5), (A, 6), (A, 7)],
        [(A, n) for n in range(0, 100, 9)],
    ],
)
def test_exactly_the_records_that_fail_are_found_each_with_its_own_error(bad):
    failing = Failing(*bad)
    found = bisect([Range(A, 0, 100), Range(B, 50, 60)], failing, 1_000)
    assert list(found) == [RecordId(at.topic, at.partition, offset) for at, offset in sorted(bad)]
    assert [str(error) for error in found.values()] == [str([one]) for one in sorted(bad)]


def test_one_record_among_a_million_is_found_with_few_questions():
    failing = Failing((A, 123_456))
    bisect([Range(A, 0, 1_000_000)], lambda part: _first(failing, part), 10)
    assert len(failing.asked) <= 2 * 20 + 1


def _first(failing, part):
    failing.asked.append(part)
    return ValueError() if any(r.start <= 123_456 < r.until for r in part) else None


def test_a_whole_that_passes_has_no_bad_record():
    failing = Failing()
    assert bisect([Range(A, 0, 100)], failing, 10) == {}
    assert len(failing.asked) == 1


def test_empty_ranges_are_not_asked_about():
    failing = Failing()
    assert bisect([Range(A, 7, 7)], failing, 10) == {}
    assert failing.asked == []


def test_when_all_fail_the_work_is_bounded_by_how_many_are_wanted():
    failing = Failing(*((A, n) for n in range(100_000)))
    found = bisect([Range(A, 0, 100_000)], failing, 100)
    assert len(found) == 100
    assert len(failing.asked) < 250


def test_any_other_error_ends_the_search():
    def away(part):
        raise ConnectionError("the broker is away")

    with pytest.raises(ConnectionError):
        bisect([Range(A, 0, 100)], away, 100)


class Reported(PySparkException):
    """As Spark tells the state of an error."""

    def __init__(self, state, condition="SOME"):
        super().__init__("what is wrong")
        self._told = state, condition

    def getSqlState(self):
        return self._told[0]

    def getCondition(self):
        return self._told[1]


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("state", ["22012", "22018", "38000", "39000", "P0001"])
def test_an_error_of_a_value_or_a_function_is_one_of_the_rows(state):
    error = Reported(state)
    assert _row_error(error) is error
    assert _row_error(caused(RetriableError("the sink says it in its words"), error)) is error


@pytest.mark.parametrize(
    "error",
    [
        Reported(None),
        Reported("XXKST"),
        Reported("58030"),
        Reported("22000", "KAFKA_DATA_LOSS"),
        ConnectionError("the sink is down"),
        RetriableError("the store does not answer"),
        caused(BadRecord("another one"), Reported("22012")),
    ],
    ids=repr,
)
def test_an_error_of_the_infrastructure_is_none_of_the_rows(error):
    assert _row_error(error) is None
