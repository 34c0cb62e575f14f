"""A Structured Streaming query of the user's own, killed at every point: each row and each group is stored once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from crash import queries, wide_columns
from crash.feed import Feed
from crash.pipelines import SERVERS
from crash.queries import BROKEN, CASES, EVERY, Query
from crash.runs import die_at_every_point
from headrace.support.polling import wait_until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def query_on(kafka, topic, tmp_path, request, monkeypatch):
    """Creates a query on a topic of its own, and the feed of that topic."""

    def make(kind, mode):
        events = topic(partitions=2)
        query = Query(kind=kind, mode=mode, bootstrap=kafka.bootstrap, topic=events.name, directory=str(tmp_path))
        for name in query.servers:
            monkeypatch.setenv(SERVERS[name], request.getfixturevalue(name).address)
        if kind == "cassandra":
            with wide_columns.cassandra_offsets(tmp_path) as store:
                store.open("query")  # creates the keyspace
        return query, Feed(kafka.bootstrap, events.name, 2)

    return make


@pytest.fixture(scope="module")
def jvm():
    """The environment of a JVM for the runs of this module.

    It is not that of the session `spark`: a JVM calls the functions of all its Python processes over one pool of
    connections, so queries of two processes, one after the other, need a JVM of which only one process is alive.
    """
    process = subprocess.Popen(
        [sys.executable, queries.__file__, "--jvm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.communicate()


def run(query, jvm, *spared):
    environment = {**os.environ, **jvm}
    return subprocess.run(
        query.command(*spared), env=environment, capture_output=True, text=True, timeout=180, check=False
    )


def kill_at_every_point(query, feed, jvm):
    return die_at_every_point(lambda *spared: run(query, jvm, *spared), lambda: feed.send(60))


@pytest.mark.matrix(sample=4)
@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_a_query_killed_at_every_point_stores_each_row_once(kind, mode, query_on, jvm):
    query, feed = query_on(kind, mode)
    points = kill_at_every_point(query, feed, jvm)
    assert {"structured: before write", "structured: written", "structured: batch done"} <= set(points)
    assert query.stored() == query.expected(feed.acknowledged), points


def test_the_kills_reveal_a_sink_that_stores_a_repeated_batch_twice(query_on, jvm):
    query, feed = query_on(BROKEN, "append")
    points = kill_at_every_point(query, feed, jvm)
    stored, sent = query.stored(), query.expected(feed.acknowledged)
    assert not sent - stored, points
    assert stored - sent, points


@contextmanager
def job(query):
    """A job in a process group of its own, with its JVM; the points that it has reached."""
    with (Path(query.directory) / "job.txt").open("ab") as errors:
        process = subprocess.Popen(
            query.command(own_jvm=True), stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    points = []
    follower = threading.Thread(target=lambda: points.extend(process.stdout), daemon=True)
    follower.start()
    try:
        yield process, points
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        follower.join()
        process.stdout.close()


@pytest.mark.matrix(sample=1)
@pytest.mark.parametrize(("kind", "mode"), [("postgres", "update"), ("kafka", "append"), ("delta", "windows")])
def test_a_job_killed_with_its_jvm_at_random_times_stores_each_row_once(kind, mode, query_on, chance, jvm):
    query, feed = query_on(kind, mode)
    query = replace(query, per_batch=5_000)
    interrupted = 0
    with feed.flowing(rate=100):
        for _ in range(3):
            with job(query) as (process, points):
                wait_until(lambda: points.count("structured: batch done\n") >= 2 or process.poll() is not None, 120)
                assert process.poll() is None, (Path(query.directory) / "job.txt").read_text()
                time.sleep(chance.uniform(0, 2))
                interrupted += points[-1] != "structured: batch done\n"
    done = run(query, jvm, EVERY)
    assert done.returncode == 0, done.stderr
    assert query.stored() == query.expected(feed.acknowledged)
    print(f"{interrupted} of 3 kills in a batch")
