"""Waiting for a condition with a deadline."""

import time

from headrace.support.polling import wait_until


def test_the_first_true_value_is_returned():
    answers = iter([0, "", None, "ready", "later"])
    assert wait_until(lambda: next(answers), 5, 0.001) == "ready"


def test_the_last_value_is_returned_when_the_time_is_up():
    began = time.monotonic()
    assert wait_until(list, 0.02, 0.001) == []
    assert time.monotonic() - began < 2


def test_the_condition_is_checked_once_without_time_to_wait():
    calls = []
    assert wait_until(lambda: calls.append(1), -1.0) is None
    assert calls == [1]
