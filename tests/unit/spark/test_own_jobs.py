"""Which Spark jobs are cancelled with a run."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from py4j.clientserver import ClientServer
from pyspark import SparkContext

from headrace.spark.own_jobs import OwnJobs, cancel_until

SOON = 20.0


@pytest.fixture
def session():
    context = Mock()
    context.getJobTags.return_value = {"mine", "headrace-run-of-another"}
    return SimpleNamespace(sparkContext=context, _jsparkSession="session")


@pytest.fixture
def pinned(monkeypatch):
    monkeypatch.setattr(SparkContext, "_gateway", Mock(spec=ClientServer))


def over():
    event = threading.Event()
    event.set()
    return event


def test_the_jobs_of_one_run_have_a_tag_of_their_own_and_only_they_are_cancelled(pinned, session):
    context, one, other = session.sparkContext, OwnJobs(session), OwnJobs(session)
    tags = []
    for jobs in (one, other):
        jobs.adopt_thread()
        tags.append(context.addJobTag.call_args.args[0])
    assert tags[0] != tags[1]
    one.cancel(over())
    context.cancelJobsWithTag.assert_called_once_with(tags[0])
    context.cancelAllJobs.assert_not_called()


def test_the_thread_of_a_run_inherits_what_its_starter_had_set_but_not_the_tag_of_another_run(pinned, session):
    context = session.sparkContext
    OwnJobs(session).adopt_thread()
    java = context._jsc.sc()
    java.setLocalProperties.assert_called_once_with(java.getLocalProperties().clone())
    context.removeJobTag.assert_called_once_with("headrace-run-of-another")


def test_without_pinned_threads_all_jobs_are_cancelled(monkeypatch, session):
    monkeypatch.setattr(SparkContext, "_gateway", object())
    jobs = OwnJobs(session)
    jobs.adopt_thread()
    jobs.cancel(over())
    session.sparkContext.addJobTag.assert_not_called()
    session.sparkContext.cancelAllJobs.assert_called_once_with()


def test_jobs_are_cancelled_again_until_it_is_over_also_when_spark_does_not_answer():
    done, calls = threading.Event(), []

    def cancel():
        calls.append("cancel")
        if len(calls) == 1:
            raise ConnectionError("the JVM has gone")
        done.set()

    cancel_until(done, cancel)
    assert len(calls) == 2
