"""Which micro-batches are written, skipped or refused, by what the sink has stored."""

import pytest

from headrace.engine.structured.query_batch import Decision, QueryBatch
from headrace.errors import OffsetConflict
from headrace.types import Progress, Range, TopicPartition

QUERY, CONTENT = TopicPartition("headrace.query.clicks", 0), TopicPartition("headrace.query.clicks", 1)
START, WRITE, SKIP = Decision.START, Decision.WRITE, Decision.SKIP


def batch(number, reads=0, query="q1"):
    return QueryBatch("clicks", query, number, f"{reads:08x}ffff")


def stored(number, reads=0, query="q1"):
    """The progress after batch `number`."""
    return Progress().advanced(batch(number, reads, query).with_offsets(Progress()))


@pytest.mark.parametrize(
    ("progress", "given", "decision"),
    [
        (Progress(), batch(0), START),
        (Progress(), batch(7), START),  # the function was added to a query that has run before
        (Progress({TopicPartition("clicks", 0): 5}), batch(0), START),  # a pipeline of this name has run before
        (stored(7, query="q0"), batch(0), START),  # a new checkpoint
        (stored(7, query="q0"), batch(7), START),
        (stored(7, query="q0"), batch(8), START),
        (stored(7, 50), batch(8, 60), WRITE),
        (stored(7, 50), batch(8, 50), WRITE),  # no new input: the watermark has advanced
        (stored(7, 50), batch(7, 50), SKIP),
        (stored(0, 50), batch(0, 50), SKIP),
    ],
)
def test_a_batch_is_written_once(progress, given, decision):
    assert given.decide(progress) is decision


@pytest.mark.parametrize(
    ("progress", "given", "reason", "hint"),
    [
        (stored(8, 60), batch(7, 50), "the sink has batches up to 8", "restored from a backup"),
        (stored(7, 50), batch(7, 55), "the sink has batches up to 7", "restored from a backup"),
        (stored(5), batch(7), "batch 6 of this query did not go through", "another name="),
        (stored(2), batch(7), "batches 3 to 6 of this query did not go", "another name="),
    ],
)
def test_a_batch_that_does_not_follow_is_refused(progress, given, reason, hint):
    with pytest.raises(OffsetConflict) as refused:
        given.decide(progress)
    assert "clicks: batch 7 was refused: " in refused.value.message
    assert reason in refused.value.message
    assert hint in refused.value.hint


def test_a_transactional_sink_stores_the_number_of_the_batch_and_what_it_read():
    made = batch(7, 60).with_offsets(Progress({CONTENT: 3}, last_batch=11, epoch=2))
    assert made.ranges == (Range(QUERY, 7, 8), Range(CONTENT, 3, (8 << 32) + 60))
    assert (made.id, made.topic_ids, made.epoch) == (12, {QUERY.topic: "q1"}, 2)


def test_repeats_have_one_fingerprint_and_other_batches_another():
    same, again, next_one, replanned, other_query = (
        given.numbered(5).fingerprint
        for given in (batch(7, 60), batch(7, 60), batch(8, 60), batch(7, 65), batch(7, 60, query="q2"))
    )
    assert same == again
    assert len({same, next_one, replanned, other_query}) == 4


@pytest.mark.parametrize("number", [0, 7])
def test_a_batch_that_was_stored_is_a_repeat_and_the_next_one_follows(number):
    given = batch(number, 60)
    for before in (Progress(), Progress(given.start_offsets, topic_ids={QUERY.topic: "q0"})):
        progress = before.advanced(given.with_offsets(before))
        assert given.decide(progress) is SKIP
        assert batch(number + 1, 65).decide(progress) is WRITE


def test_the_offsets_of_a_query_only_grow():
    offsets = [given.content_offset for given in (batch(0, 9), batch(1, 9), batch(2, 2**32 - 1), batch(3, 0))]
    assert offsets == sorted(set(offsets))
    assert all(batch(n).start_offsets[CONTENT] < batch(n).content_offset for n in range(3))
