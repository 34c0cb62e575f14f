"""Which session a notebook gets, and that none of a user's is ended unless it is asked for."""

from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.errors import ConfigError
from headrace.spark import notebook
from headrace.spark import session as sessions

CREATE = sessions.create


class Context:
    """A context of the user's, with or without the connector on its class path."""

    def __init__(self, ended, connector):
        self.ended = ended
        self._jsc = object()
        self._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=self)))
        self.connector = connector

    def currentThread(self):
        return self

    def getContextClassLoader(self):
        return self

    def loadClass(self, name):
        if not self.connector:
            raise ClassNotFoundError(name)

    def stop(self):
        self._jsc = None
        self.ended.append("context")


class ClassNotFoundError(Exception):
    pass


@pytest.fixture
def process(monkeypatch):
    """A process in which pyspark has a context, and a session that another thread has made; what was ended of it."""
    ended = []

    def having(*, connector=False, session=True):
        context = Context(ended, connector)
        made = SimpleNamespace(sparkContext=context, stop=context.stop) if session else None
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
        monkeypatch.setattr(SparkSession, "_instantiatedSession", made)
        monkeypatch.setattr(SparkContext, "_active_spark_context", context)
        monkeypatch.setattr(SparkContext, "_jvm", context._jvm)
        return made

    having.ended = ended
    monkeypatch.setattr(notebook, "_end_jvm", lambda: ended.append("java"))
    monkeypatch.setattr(sessions, "create", lambda options, progress: "new")
    return having


@pytest.mark.parametrize("session", [True, False])
def test_what_another_thread_has_made_is_not_ended(process, session):
    process(session=session)
    with pytest.raises(ConfigError) as refused:
        notebook.session()
    assert "hr.session(restart=True)" in refused.value.hint
    assert process.ended == []


@pytest.mark.parametrize("session", [True, False])
def test_it_is_ended_where_that_is_asked_for(process, session):
    process(session=session)
    assert notebook.session(restart=True) == "new"
    assert process.ended == ["context", "java"]


def test_a_session_of_another_thread_with_the_connector_is_taken(process):
    made = process(connector=True)
    assert notebook.session() is made
    assert process.ended == []


def test_the_session_of_another_thread_is_the_one_of_a_run(process):
    made = process(connector=True)
    assert sessions.running()
    assert CREATE({}) is made
    made.sparkContext.stop()
    assert not sessions.running()
