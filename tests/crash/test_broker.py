"""A run waits for a broker that has died or has not started yet, reports this, and loses nothing."""

import uuid

import pytest

from crash.feed import Feed
from crash.pipelines import SERVERS, Case
from crash.runs import Run, drained
from headrace.dev import Kafka
from headrace.testing.fixtures import Topic

pytestmark = pytest.mark.timeout(900)  # whole processes, on a machine that may be busy


@pytest.fixture
def broker(tmp_path):
    """A broker that this test may kill."""
    with Kafka(tmp_path / "kafka", heap="512m") as server:
        yield server


@pytest.fixture(params=["duckdb", "kafka"])
def case_and_feed(broker, tmp_path, monkeypatch, request):
    """Cases that write to a file, and to another topic of the same broker, so that it also dies within transactions."""
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv(SERVERS["kafka"], broker.bootstrap)
    # A unique name: the session caches consumers by group and topic, also those of a dead broker.
    events = Topic(broker.bootstrap, f"events-{uuid.uuid4().hex[:8]}", 2, {})
    case = Case(
        kind=request.param,
        guarantee="exactly-once",
        bootstrap=broker.bootstrap,
        topic=events.name,
        directory=str(tmp_path),
    )
    return case, Feed(broker.bootstrap, events.name, 2)


def says_that_the_broker_is_away(run, broker):
    return any(f"{broker.bootstrap} does not answer" in event["error"]["message"] for event in run.seen("Retrying"))


@pytest.mark.matrix(sample=1)
def test_a_run_outlives_the_death_of_its_broker(broker, case_and_feed, spark):
    case, feed = case_and_feed
    with Run(case) as run:
        with feed.flowing(rate=300):
            run.wait_for_more(batches=3)
            broker.brokers[0].kill()
            # Most deaths are detected at the next request for offsets; one during a read, when the poll times out.
            run.wait_for(lambda: says_that_the_broker_is_away(run, broker), seconds=240)
            broker.brokers[0].start()
            run.wait_for_more(batches=3)

            # Again in the middle of a batch, without waiting for its detection.
            run.wait_for(lambda: run.open_batch)
            broker.brokers[0].kill()
            broker.brokers[0].start()
            run.wait_for_more(batches=3, seconds=240)
        assert run.stop() == 0, str(run)

    assert len(run.seen("RunStarted")) == 1
    assert len(feed.acknowledged) > 0
    assert str(feed.compare(drained(case, spark))) == "0 missing, 0 duplicate"


@pytest.mark.matrix(sample=1)
def test_a_run_that_starts_before_its_broker_waits_for_it(broker, case_and_feed):
    case, feed = case_and_feed
    feed.send(500)
    broker.brokers[0].kill()

    with Run(case, "--until=caught-up") as run:
        run.wait_for(lambda: says_that_the_broker_is_away(run, broker))
        assert run.done == []
        broker.brokers[0].start()
        assert run.exit_code() == 0, str(run)

    assert str(feed.compare(case.stored())) == "0 missing, 0 duplicate"
