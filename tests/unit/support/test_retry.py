"""Delays and attempts of a repeated call."""

from itertools import islice

import pytest

from headrace.support.retry import RetryPolicy


def test_delays_double_up_to_the_longest_and_are_one_fewer_than_the_attempts():
    policy = RetryPolicy(attempts=6, first=0.5, longest=3.0)
    assert list(policy.delays()) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert list(RetryPolicy(attempts=1, first=0.5).delays()) == []


def test_a_policy_without_a_number_of_attempts_never_ends():
    assert list(islice(RetryPolicy(first=1.0, longest=30.0).delays(), 10_000))[-1] == 30.0


def test_jitter_shortens_a_delay_by_up_to_its_share():
    policy = RetryPolicy(attempts=3, first=2.0, jitter=0.5)
    assert list(policy.delays(lambda: 0.0)) == [2.0, 4.0]
    assert list(policy.delays(lambda: 1.0)) == [1.0, 2.0]


def test_tries_wait_before_each_attempt_but_the_first():
    slept = []
    assert list(RetryPolicy(attempts=4, first=1.0).tries(sleep=slept.append)) == [1, 2, 3, 4]
    assert slept == [1.0, 2.0, 4.0]


def test_tries_without_a_delay_do_not_sleep():
    slept = []
    assert list(RetryPolicy(attempts=3).tries(sleep=slept.append)) == [1, 2, 3]
    assert slept == []


def test_no_attempt_begins_once_one_has_failed_after_the_time_is_over():
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    policy = RetryPolicy(first=1.0, factor=1.0, within=2.5)
    assert list(policy.tries(lambda: now[0], sleep)) == [1, 2, 3, 4]  # at 0, 1, 2 and 3 seconds


def test_a_call_is_repeated_after_retriable_errors_only():
    answers = [ValueError("once"), ValueError("twice"), "done"]

    def function():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    policy = RetryPolicy(attempts=3)
    assert policy.call(function, lambda error: isinstance(error, ValueError)) == "done"
    answers = [KeyError("other")]
    with pytest.raises(KeyError, match="other"):
        policy.call(function, lambda error: isinstance(error, ValueError))


def test_the_last_error_is_raised_when_the_attempts_are_used_up():
    errors = [ValueError(number) for number in range(3)]

    def function():
        raise errors.pop(0)

    with pytest.raises(ValueError, match="2"):
        RetryPolicy(attempts=3).call(function, lambda error: True)
