"""Settings of a session that are other ones for a moment, also where several runs share the session."""

import threading
from types import SimpleNamespace

import pytest

from headrace.spark.shared_settings import session_settings

SOON = 20.0
DEFAULTS = {"a": "default", "b": "default"}


class Conf:
    def __init__(self, given):
        self.given = dict(given)

    def get(self, name, *default):
        return self.given.get(name, *default) if default else self.given.get(name, DEFAULTS[name])

    def set(self, name, value):
        assert self.get(name) != value, "which costs a call to the JVM"
        self.given[name] = value

    def unset(self, name):
        del self.given[name]


def session(**given):
    java = SimpleNamespace(sessionUUID=lambda: f"session {id(conf)}")
    conf = Conf(given)
    return SimpleNamespace(conf=conf, _jsparkSession=java)


@pytest.mark.parametrize("before", [{}, {"a": "mine"}, {"a": "wanted"}])
def test_the_session_is_as_it_was_afterwards_also_after_an_error(before):
    spark = session(**before)
    with session_settings(spark, {"a": "wanted", "b": "wanted"}):
        assert (spark.conf.get("a"), spark.conf.get("b")) == ("wanted", "wanted")
    assert spark.conf.given == before
    with pytest.raises(ValueError, match="within"), session_settings(spark, {"a": "wanted"}):
        raise ValueError("within")
    assert spark.conf.given == before


def test_the_last_one_to_leave_restores_them():
    spark = session(a="mine")
    one, other = session_settings(spark, {"a": "wanted"}), session_settings(spark, {"a": "wanted"})
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert spark.conf.get("a") == "wanted"
    other.__exit__(None, None, None)
    assert spark.conf.given == {"a": "mine"}


def test_another_value_waits_until_the_others_have_left():
    spark, seen, entered = session(), [], threading.Event()

    def want_another():
        entered.set()
        with session_settings(spark, {"a": "2"}):
            seen.append(spark.conf.get("a"))

    waiting = threading.Thread(target=want_another)
    with session_settings(spark, {"a": "1"}):
        waiting.start()
        assert entered.wait(SOON)
        waiting.join(0.05)
        assert (seen, spark.conf.get("a")) == ([], "1")
        with session_settings(session(), {"a": "3"}):
            assert spark.conf.get("a") == "1"
    waiting.join(SOON)
    assert (seen, spark.conf.given) == (["2"], {})
