"""The steps of a batch by guarantee and sink. `test_delivery_model.py` shows what they are worth."""

import pytest

from headrace import sinks
from headrace.core.delivery import Guarantee, Step, WriteResult, deliver, protocol, resume
from headrace.errors import UnsupportedGuarantee
from headrace.testing.fakes import FakeIdempotentSink, FakeNumberedSink, FakeSink, FakeStore, FakeTransactionalSink
from headrace.types import Batch, Range, TopicPartition

BEGIN, WRITE, COMMIT = Step.BEGIN, Step.WRITE, Step.COMMIT
ONCE, MOST, LEAST = Guarantee.EXACTLY_ONCE, Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE
BATCH = Batch(1, (Range(TopicPartition("clicks", 0), 0, 5),))


@pytest.mark.parametrize(
    ("guarantee", "sink", "steps", "pending"),
    [
        (MOST, FakeSink, (COMMIT, WRITE), (COMMIT,)),
        (MOST, FakeIdempotentSink, (COMMIT, WRITE), (COMMIT,)),
        (MOST, FakeTransactionalSink, (WRITE,), (WRITE,)),
        (LEAST, FakeSink, (BEGIN, WRITE, COMMIT), (WRITE, COMMIT)),
        (LEAST, FakeIdempotentSink, (BEGIN, WRITE, COMMIT), (WRITE, COMMIT)),
        (LEAST, FakeTransactionalSink, (WRITE,), (WRITE,)),
        (ONCE, FakeIdempotentSink, (BEGIN, WRITE, COMMIT), (WRITE, COMMIT)),
        (ONCE, FakeNumberedSink, (BEGIN, WRITE, COMMIT), (WRITE, COMMIT)),
        (ONCE, FakeTransactionalSink, (WRITE,), (WRITE,)),
    ],
)
def test_the_steps_of_a_new_batch_and_of_one_that_was_found_pending(guarantee, sink, steps, pending):
    assert protocol(guarantee, sink()) == steps
    assert resume(guarantee, sink()) == pending


@pytest.mark.parametrize("sink", [FakeSink(), sinks.Console()], ids=lambda sink: type(sink).__name__)
def test_a_plain_sink_cannot_give_exactly_once(sink):
    with pytest.raises(UnsupportedGuarantee, match=f"{type(sink).__name__} cannot give exactly-once") as refused:
        protocol(ONCE, sink)
    assert "at-least-once" in refused.value.hint


@pytest.mark.parametrize("steps", [(BEGIN, WRITE, COMMIT), (COMMIT, WRITE), (WRITE,), (COMMIT,)])
@pytest.mark.parametrize("died_before", [0, 1, 2, 3])
def test_each_step_is_announced_before_it_is_taken(steps, died_before):
    store = FakeStore().open("clicks")
    taken = []
    store.before_call = lambda name, batch: taken.append(Step(name))
    for number, step in enumerate(deliver(steps, BATCH, lambda: taken.append(WRITE), store)):
        assert step is steps[number]
        assert taken == list(steps[:number])
        if number == died_before:
            return
    assert taken == list(steps)


@pytest.mark.parametrize(
    ("bytes_each", "records", "size"), [(12.5, 8, 100), (12.5, None, None), (None, 8, None), (0.4, 1, 0)]
)
def test_the_size_of_a_batch_is_known_where_records_were_counted_and_measured(bytes_each, records, size):
    assert WriteResult(bytes_each=bytes_each, records=records).bytes == size
