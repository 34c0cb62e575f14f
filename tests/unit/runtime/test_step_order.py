"""In which order rows are written and offsets committed, by guarantee, and how batches are numbered."""

import headrace as hr
from headrace import events, stores
from headrace.errors import RetriableError
from headrace.types import Range
from support.fake_runs import A, Idempotent, World, failing, records


def test_a_write_that_failed_under_at_most_once_is_given_up_and_said():
    world = World({A: 20}, guarantee="at-most-once", limits=hr.Limits(max_records=10))
    world.sink.before = failing(1, ValueError("no"))
    world.run()
    assert world.sink.rows == [(A, offset) for offset in range(10, 20)]
    (skipped,) = world.all(events.BatchSkipped)
    assert skipped.batch.ranges == (Range(A, 0, 10),)


def test_a_commit_that_failed_under_at_most_once_loses_nothing():
    world = World({A: 20}, guarantee="at-most-once")
    fail = failing(1, RetriableError("the store is away"))

    class Shaky(stores.Memory):
        def commit(self, batch):
            if len(batch):
                fail()
            super().commit(batch)

    object.__setattr__(world.pipeline, "offsets", Shaky(world.shared))
    world.run()
    assert world.sink.rows == records(a=20)
    assert world.all(events.BatchSkipped) == []


def test_under_at_most_once_the_offsets_move_before_the_rows():
    world = World({A: 20}, guarantee="at-most-once")
    during = []
    world.sink.before = lambda batch: during.append(world.progress.offsets[A])
    world.run()
    assert during == [20]


def test_under_at_least_once_the_offsets_move_after_the_rows_and_the_ranges_are_journalled_first():
    world = World({A: 20})
    during = []
    world.sink.before = lambda batch: during.append((world.progress.offsets[A], world.progress.pending == batch))
    world.run()
    assert during == [(0, True)]


def test_batches_are_numbered_above_the_newest_that_the_sink_remembers_even_if_the_store_forgot():
    asked = []

    class Remembering(Idempotent):
        def last_batch(self):
            asked.append(self.opened)
            return 41

    world = World({A: 30}, guarantee="exactly-once", sink=Remembering(), limits=hr.Limits(max_records=10))
    world.run()
    assert [batch.id for batch in world.sink.batches] == [42, 43, 44]
    assert asked == [1], "asked once, not before every batch: it may be a question to a server"
