"""SIGTERM and Ctrl-C, for loops that end in good order."""

import os
import signal
import threading

import pytest

from headrace.runtime.signals import on_stop_signal


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_handled_and_the_second_meets_the_previous_handler(number):
    calls, before = [], handlers()
    with on_stop_signal(calls.append):
        os.kill(os.getpid(), number)
        assert calls == [number.name]
        assert handlers() == before
    assert handlers() == before


def test_the_second_signal_meets_the_given_handler():
    before = handlers()
    with on_stop_signal(lambda _: None, second=signal.SIG_IGN):
        os.kill(os.getpid(), signal.SIGTERM)
        assert handlers() == [signal.SIG_IGN] * 2
        os.kill(os.getpid(), signal.SIGTERM)
    assert handlers() == before


def test_loops_within_loops_all_hear_it():
    calls, before = [], handlers()
    with on_stop_signal(lambda _: calls.append("outer")):
        with on_stop_signal(lambda _: calls.append("inner")):
            pass
        with on_stop_signal(lambda _: calls.append("another inner")):
            os.kill(os.getpid(), signal.SIGINT)
        assert calls == ["outer", "another inner"]
        assert handlers() == before
    assert handlers() == before


def test_elsewhere_than_in_the_main_thread_nothing_is_touched():
    before, during = handlers(), []

    def elsewhere():
        with on_stop_signal(lambda _: None):
            during.extend(handlers())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert during == before
