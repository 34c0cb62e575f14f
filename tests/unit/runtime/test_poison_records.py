"""Records on which the transform fails, with the real loop around a transform of this file: no Kafka, no Spark."""

import threading
from contextlib import nullcontext

import pytest

from headrace import events
from headrace.core.dead_letters import DeadLetters, RecordId
from headrace.engine import failing_records
from headrace.engine.batch_timeout import deadline
from headrace.errors import BatchChanged, BatchTimeout, TransformFailed
from headrace.testing.fakes import FakeEngine, FakeTransactionalSink
from headrace.types import Batch, Range, TopicPartition
from support.simulation import A, simulate
from unit.engine.test_failing_records import Reported

BAD = RecordId("clicks", 0, 3)
CODE, VALUE = "38000", "22012"
"""SQL states: of a function, which is believed at the third failure, and of a value, which is believed at once."""


class FakeFailingRecords(failing_records.FailingRecords):
    """Fails on parts with one of `bad` that is not diverted, or on every part."""

    def __init__(self, bad, *, always=False, state=VALUE):
        super().__init__(None, None, DeadLetters(table="dead"), lambda batch: nullcontext(), patient=True)
        self.bad, self.always, self.state = bad, always, state

    def _rows(self, batch, ranges):
        return [], None

    def _failure(self, batch, ranges):
        left = self.bad - set(self._diverted)
        there = {RecordId(r.at.topic, r.at.partition, n) for r in ranges for n in range(r.start, r.until)}
        return Reported(self.state) if self.always or left & there else None


class Engine(FakeEngine):
    """Writes to a transactional sink, which journals no batch, so that each attempt plans one."""

    def __init__(self, sink, found, arrive):
        super().__init__(sink)
        self.poison, self.arrive = found, arrive
        self.batch = None
        self.diverted = []

    def write(self, batch):
        self.batch = batch
        diverted = dict(self.poison.diverted(batch))
        self.arrive()
        if error := self.poison._failure(batch, batch.ranges):
            raise error
        every = [RecordId(r.at.topic, r.at.partition, n) for r in batch.ranges for n in range(r.start, r.until)]
        self.sink.write(batch, [origin for origin in every if origin not in diverted])
        self.diverted += diverted
        return self.result

    def translate_error(self, error):
        return self.poison.find(self.batch, error) or error


@pytest.fixture(autouse=True)
def divisible(monkeypatch):
    monkeypatch.setattr(failing_records, "step_over_several_records", lambda rows, frames: None)


def simulate_failing(found, *, ends=10, arriving=True):
    sim = simulate({A: ends}, guarantee="exactly-once", sink=FakeTransactionalSink())
    sim.engine = Engine(sim.sink, found, lambda: sim.cluster.produce(A, int(arriving)))
    return sim


def run_bounded(sim):
    """Run until caught up; stopped where a batch is repeated without end."""
    sim.on_event = lambda _: sim.stop("it does not end") if len(sim.events_of(events.Retrying)) > 10 else None
    sim.run()


@pytest.mark.parametrize(("state", "attempts"), [(VALUE, 1), (CODE, 3)])
def test_a_record_is_diverted_though_others_arrive_at_each_attempt(state, attempts):
    sim = simulate_failing(FakeFailingRecords({BAD}, state=state))
    run_bounded(sim)
    assert sim.engine.diverted == [BAD]
    assert sim.sink.rows == [RecordId("clicks", 0, n) for n in range(10 + attempts) if n != BAD.offset]
    failed = sim.events_of(events.Retrying)
    assert [isinstance(event.error, BatchChanged) for event in failed] == [False] * (attempts - 1) + [True]


def test_a_transform_that_fails_without_any_record_ends_the_run():
    sim = simulate_failing(FakeFailingRecords({BAD}, always=True), ends=3, arriving=False)
    with pytest.raises(TransformFailed, match="without any record"):
        run_bounded(sim)
    assert sim.sink.rows == sim.engine.diverted == []


def test_what_is_known_of_a_record_is_for_its_topic_and_while_it_is_read():
    found = FakeFailingRecords({BAD})

    def batch(start, until, topic_id="id-1"):
        return Batch(1, (Range(A, start, until),), {"clicks": topic_id})

    assert isinstance(found.find(batch(0, 5), Reported(VALUE)), BatchChanged)
    assert list(found.diverted(batch(0, 9))) == [BAD]
    assert list(found.diverted(batch(2, 9))) == [BAD]
    assert list(found.diverted(batch(2, 9, "id-2"))) == []
    assert isinstance(found.find(batch(0, 5), Reported(VALUE)), BatchChanged)
    assert list(found.diverted(batch(4, 9))) == []


def test_failures_count_for_a_batch_that_starts_where_the_one_before_did():
    found = FakeFailingRecords({BAD}, state=CODE)
    other = TopicPartition("clicks", 1)
    grown = [Batch(1, (Range(A, 0, 5 + n), Range(other, n, 9))) for n in range(3)]
    assert [found.find(batch, Reported(CODE)) is None for batch in grown] == [True, True, False]
    moved = Batch(2, (Range(A, 1, 9),))
    assert found.find(moved, Reported(CODE)) is None


TRACEBACK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/app/clicks.py", line 12, in shout
    {code}
{error}
"""


class OnWorker(Reported):
    """As Spark tells what a Python function raised."""

    def __init__(self, *errors):
        super().__init__(CODE)
        self._text = "\nDuring handling of the above exception, another exception occurred:\n".join(
            TRACEBACK.format(code="return text.upper()", error=error) for error in errors
        )

    def __str__(self):
        return self._text


@pytest.mark.parametrize(
    "errors",
    [
        ["NameError: name 'shuot' is not defined"],
        ["UnboundLocalError: cannot access local variable 'x'"],
        ["ImportError: cannot import name 'x' from 'y'"],
        ["ModuleNotFoundError: No module named 'simplejson'"],
        ["SyntaxError: invalid syntax"],
        ["NotImplementedError"],
        ["ImportError: no fast one", "ModuleNotFoundError: No module named 'slow'"],
    ],
    ids=lambda errors: errors[-1],
)
def test_an_error_of_programming_on_a_worker_stops_at_once_and_diverts_nothing(errors):
    found = FakeFailingRecords({BAD}, state=CODE)
    batch = Batch(1, (Range(A, 0, 5),))
    stopped = found.find(batch, OnWorker(*errors))
    assert isinstance(stopped, TransformFailed)
    assert errors[0] in stopped.message and "/app/clicks.py:12" in stopped.message
    assert not found.diverted(batch)


@pytest.mark.parametrize(
    "errors",
    [
        ["TypeError: unsupported operand type(s)"],
        ["AttributeError: 'NoneType' object has no attribute 'upper'"],
        ["ImportError: no fast one", "ValueError: cannot shout this"],
        ["ValueError: a record with the text of a traceback:" + TRACEBACK.format(code="x", error="NameError: forged")],
        ["NameErrors: an exception of the user's"],
    ],
    ids=lambda errors: errors[-1].split(":")[0],
)
def test_what_a_value_may_raise_on_a_worker_is_searched_for_its_record(errors):
    found = FakeFailingRecords({BAD}, state=CODE)
    batch = Batch(1, (Range(A, 0, 5),))
    outcomes = [found.find(batch, OnWorker(*errors)) for _ in range(3)]
    assert outcomes[:2] == [None, None] and isinstance(outcomes[2], BatchChanged)


class Endless:
    """Spark with a job that ends only when it is cancelled; and the rows of that job."""

    def __init__(self):
        self.sparkContext = self.write = self
        self.cancelled = threading.Event()
        self.tags = set()

    def addJobTag(self, tag):
        self.tags.add(tag)

    def removeJobTag(self, tag):
        self.tags.remove(tag)

    def cancelJobsWithTag(self, tag):
        assert tag in self.tags
        self.cancelled.set()

    def format(self, name):
        return self

    def mode(self, name):
        return self

    def save(self):
        assert self.cancelled.wait(20.0 if self.tags else 0), "nobody cancels it"
        raise Reported(None)


class EndlessRows(failing_records.FailingRecords):
    def __init__(self, spark, limited):
        super().__init__(None, None, None, limited, patient=True)
        self._spark = spark

    def _rows(self, batch, ranges):
        return [], self._spark


def test_the_search_for_a_record_keeps_to_the_time_limit_of_a_batch():
    spark = Endless()
    found = EndlessRows(spark, lambda batch: deadline(spark, batch, 0.05))
    with pytest.raises(BatchTimeout, match=r"batch 1 of 5 offsets took longer than 0.05 s"):
        found.find(Batch(1, (Range(A, 0, 5),)), Reported(VALUE))
    assert not spark.tags
