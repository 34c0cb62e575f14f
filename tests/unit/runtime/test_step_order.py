"""In which order rows are written and offsets committed, by guarantee, and how batches are numbered."""

import headrace as hr
from headrace import events
from headrace.errors import RetriableError
from headrace.testing.fakes import FakeStore, fail_first
from headrace.types import Range
from support.simulation import A, NaiveIdempotentSink, records, simulate


def test_a_write_that_failed_under_at_most_once_is_skipped_and_reported():
    sim = simulate({A: 20}, guarantee="at-most-once", limits=hr.Limits(max_records=10))
    sim.sink.before_write = fail_first(1, ValueError("no"))
    sim.run()
    assert sim.sink.rows == [(A, offset) for offset in range(10, 20)]
    (skipped,) = sim.events_of(events.BatchSkipped)
    assert skipped.batch.ranges == (Range(A, 0, 10),)


def test_a_commit_that_failed_under_at_most_once_loses_nothing():
    fail = fail_first(1, RetriableError("the store is away"))
    store = FakeStore(before_call=lambda name, batch: fail() if name == "commit" and len(batch) else None)
    sim = simulate({A: 20}, guarantee="at-most-once", store=store)
    sim.run()
    assert sim.sink.rows == records(a=20)
    assert sim.events_of(events.BatchSkipped) == []
    assert len(sim.events_of(events.Retrying)) == 1


def test_under_at_most_once_offsets_are_committed_before_the_write():
    sim = simulate({A: 20}, guarantee="at-most-once")
    during = []
    sim.sink.before_write = lambda batch: during.append(sim.progress.offsets[A])
    sim.run()
    assert during == [20]


def test_under_at_least_once_ranges_are_journalled_before_and_offsets_committed_after_the_write():
    sim = simulate({A: 20})
    during = []
    sim.sink.before_write = lambda batch: during.append((sim.progress.offsets[A], sim.progress.pending == batch))
    sim.run()
    assert during == [(0, True)]


def test_batches_are_numbered_above_the_last_batch_of_the_sink():
    asked = []

    class Remembering(NaiveIdempotentSink):
        def last_batch(self):
            asked.append(self.opened)
            return 41

    sim = simulate({A: 30}, guarantee="exactly-once", sink=Remembering(), limits=hr.Limits(max_records=10))
    sim.run()
    assert [batch.id for batch in sim.sink.batches] == [42, 43, 44]
    assert asked == [1], "asked once, not before every batch: it may be a question to a server"
