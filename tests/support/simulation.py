"""Helpers for tests of runs: partitions, sinks and a simulated pipeline named clicks."""

import headrace as hr
from headrace import sinks
from headrace.testing.fakes import FakeSink, FakeStore, Simulation
from headrace.types import Batch, Progress, Range, TopicPartition

A, B, C = (TopicPartition("clicks", number) for number in range(3))
QUICK = hr.Retry(first=0.001, longest=0.004)


class NaiveIdempotentSink(FakeSink, sinks.IdempotentSink):
    """Idempotent by its type only: it stores each write of a batch, so that a test can count them."""


class NaiveKeyedSink(NaiveIdempotentSink):
    accepts_partial_batches = True


class Killed(BaseException):
    """Ends a run at once, because only an Exception is retried."""


def records(**ends):
    """The ids of the first records of the partitions: `records(a=25, b=7)`."""
    return [(at, offset) for at, end in ((A, ends.get("a", 0)), (B, ends.get("b", 0))) for offset in range(end)]


def pending_batch(*ranges):
    return Batch(5, tuple(Range(*r) for r in ranges), {"clicks": "id-1"})


def interrupted(pending, **offsets):
    """The progress of a run that died after it had journalled `pending`."""
    return Progress({A: offsets.get("a", 0), B: offsets.get("b", 0)}, pending, {"clicks": "id-1"}, last_batch=4)


def simulate(
    end_offsets, *, guarantee="at-least-once", sink=None, store=None, progress=None, limits=None, retry=QUICK, **source
):
    """A simulated pipeline that can run several times. `source` has arguments of `hr.Kafka`."""
    sink = sink or FakeSink()
    pipeline = hr.Pipeline(
        name="clicks",
        source=hr.Kafka("nowhere:1", **({"topics": ["clicks"]} | {"refresh": 1000.0} | source)),
        sink=sink,
        guarantee=guarantee,
        offsets=None if isinstance(sink, sinks.TransactionalSink) else store or FakeStore(),
        limits=limits or hr.Limits(),
        retry=retry,
    )
    simulation = Simulation(pipeline, end_offsets)
    if progress is not None:
        simulation.restore(progress)
        assert simulation.progress == progress
    return simulation
