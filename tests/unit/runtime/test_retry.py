"""How failures are repeated: `hr.Retry`, in Python, in TOML, and what a run makes of it."""

from datetime import timedelta

import pytest

import headrace as hr
from headrace import events, sinks
from headrace.errors import BatchChanged, BatchTimeout, ConfigError, RetriableError
from headrace.runtime.config import from_toml
from headrace.runtime.retry import CAUGHT_UP_ATTEMPTS, Retry, retry_until_stopped
from headrace.testing.fakes import FakeSink, fail_first
from support.simulation import A, simulate

SOON = {"first": "1ms", "longest": "2ms"}
TOML = """
name = "clicks"
guarantee = "at-least-once"
timeout = "10m"
[source]
kafka = "localhost:9092"
topics = ["clicks"]
[sink]
console = true
[retry]
first = "2s"
longest = 60
attempts = 7
"""


@pytest.mark.parametrize("until", [None, "caught-up"])
def test_a_run_ends_with_the_error_when_its_attempts_are_used_up(until):
    error = RetriableError("the sink is away")
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(10**9, error)), retry=hr.Retry(**SOON, attempts=3))
    with pytest.raises(RetriableError) as ended:
        sim.run(until)
    assert ended.value is error
    assert [event.attempt for event in sim.events_of(events.Retrying)] == [1, 2]


def test_a_run_until_caught_up_never_waits_without_end():
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(10**9, ValueError("no"))))
    with pytest.raises(ValueError, match="no"):
        sim.run("caught-up")
    assert len(sim.events_of(events.Retrying)) == CAUGHT_UP_ATTEMPTS - 1


def test_progress_gives_all_attempts_back():
    sim = simulate({A: 20}, limits=hr.Limits(max_records=10), retry=hr.Retry(**SOON, attempts=3))
    trouble = {1: fail_first(2, ValueError("first")), 2: fail_first(2, ValueError("second"))}
    sim.sink.before_write = lambda batch: trouble[batch.id]()
    assert sim.run().records == 20


@pytest.mark.parametrize("how", [{}, {"fail_fast": True}])
def test_a_batch_that_was_changed_is_repeated_at_once_even_with_fail_fast(how):
    changed = BatchChanged("clicks[0] offset 3 goes to the dead letters")
    retry = hr.Retry(first="10m", longest="10m", attempts=1)
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(2, changed)), retry=retry)
    assert sim.run(**how).records == 10
    assert [event.delay for event in sim.events_of(events.Retrying)] == [0.0, 0.0]


def test_a_timeout_is_counted_reported_and_repeated_until_the_attempts_are_used_up():
    sim = simulate(
        {A: 10},
        sink=FakeSink(before_write=fail_first(10**9, BatchTimeout("too long"))),
        retry=hr.Retry(**SOON, attempts=3),
    )
    with pytest.raises(BatchTimeout, match="too long"):
        sim.run()
    assert [event.count for event in sim.events_of(events.BatchTimedOut)] == [1, 2, 3]


def test_a_registry_that_does_not_answer_at_the_start_ends_a_run_until_caught_up():
    asked = []

    def ask():
        asked.append(1)
        raise RetriableError("the registry does not answer")

    with pytest.raises(RetriableError, match="does not answer"):
        retry_until_stopped(ask, lambda seconds: False, events.ignore, policy=Retry().policy("caught-up"))
    assert len(asked) == CAUGHT_UP_ATTEMPTS


def test_an_outage_is_outlived_by_a_run_that_goes_on():
    sim = simulate({A: 10}, sink=FakeSink(before_write=fail_first(CAUGHT_UP_ATTEMPTS * 3, RetriableError("away"))))
    sim.stop_on(events.CaughtUp)
    assert sim.run(None).records == 10


def test_the_file_has_a_table_for_it_and_the_timeout(tmp_path):
    file = tmp_path / "clicks.toml"
    file.write_text(TOML)
    made = from_toml(file).pipeline
    assert [made.retry.policy().delay(attempt) for attempt in (1, 2, 99)] == [2.0, 4.0, 60.0]
    assert made.retry.attempts == 7
    assert made.timeout == 600.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 0},
        {"first": "soon"},
        {"longest": -1},
        {"longest": True},
        {"longest": float("inf")},
        {"first": "1m", "longest": "1s"},
        {"attempts": 0},
        {"attempts": 1.5},
        {"attempts": True},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="Retry"):
        Retry(**wrong)


@pytest.mark.parametrize("wrong", [0, -1, "soon", True, ""])
def test_a_timeout_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match="timeout"):
        hr.Pipeline(
            name="p",
            source=hr.Kafka("x:1", topics=["t"]),
            sink=sinks.Memory(),
            guarantee="at-least-once",
            timeout=wrong,
        )


@pytest.mark.parametrize("given", ["90s", 90, 90.0, timedelta(seconds=90), "PT1M30S"])
def test_durations_may_be_texts_numbers_or_timedeltas(given):
    made = hr.Pipeline(
        name="p",
        source=hr.Kafka("x:1", topics=["t"]),
        sink=sinks.Memory(),
        guarantee="at-least-once",
        timeout=given,
        retry=hr.Retry(longest=given),
    )
    assert made.timeout == made.retry.policy().delay(99) == 90.0
