"""Which micro-batches are written, skipped or refused, by what the sink has stored."""

import pytest

from headrace.engine.structured.query_batch import Decision, QueryBatch
from headrace.errors import OffsetConflict
from headrace.types import Progress, Range, TopicPartition

CLICKS = TopicPartition("clicks", 0)
QUERY, CONTENT = TopicPartition("headrace.query.clicks", 0), TopicPartition("headrace.query.clicks", 1)
START, WRITE, SKIP = Decision.START, Decision.WRITE, Decision.SKIP


def batch(number, start=None, until=None, query="q1", content=None):
    sources = () if start is None else (Range(CLICKS, start, until),)
    return QueryBatch("clicks", query, number, content or f"{until or number:08x}ffff", sources)


def stored(number, offset=None, query="q1"):
    """The progress after the batch before `number`, which read up to `offset`."""
    newest = batch(number - 1, offset, offset, query)
    return Progress().advanced(newest.with_offsets(Progress()))


@pytest.mark.parametrize(
    ("progress", "given", "decision"),
    [
        (Progress(), batch(0, 10, 10), START),
        (Progress(), batch(7, 5, 10), START),  # the function was added to a query that has run before
        (Progress({CLICKS: 5}), batch(0, 10, 10), START),  # a pipeline of this name has run before
        (stored(7, 50, query="q0"), batch(0, 10, 10), START),  # a new checkpoint
        (stored(7, 50, query="q0"), batch(7, 50, 60), START),
        (stored(7, 50), batch(7, 50, 60), WRITE),
        (stored(7, 50), batch(7, 50, 50), WRITE),  # no new input: the watermark has advanced
        (stored(7), batch(7), WRITE),
        (stored(7), batch(7, 10, 10), WRITE),  # a topic that is read from now on
        (stored(8, 60), batch(7, 50, 60), SKIP),
        (stored(8, 50), batch(7, 50, 50), SKIP),
        (stored(8), batch(7), SKIP),  # a source that is not Kafka
    ],
)
def test_a_batch_is_written_once(progress, given, decision):
    assert given.decide(progress) is decision


@pytest.mark.parametrize(
    ("progress", "given", "reason", "hint"),
    [
        (stored(9, 70), batch(7, 50, 60), "the sink has batches up to 8", "restored from a backup"),
        (stored(8, 60), batch(7, 50, 65), "the sink has batches up to 7", "restored from a backup"),
        (stored(8), batch(7, content="0000000aff"), "the sink has batches up to 7", "restored from a backup"),
        (stored(7, 55), batch(7, 50, 60), "does not start at the stored offset", "restored from a backup"),
        (stored(6, 40), batch(7, 50, 60), "batch 6 of this query did not go through", "another name="),
        (stored(3, 40), batch(7, 50, 60), "batches 3 to 6 of this query did not go", "another name="),
    ],
)
def test_a_batch_that_does_not_follow_is_refused(progress, given, reason, hint):
    with pytest.raises(OffsetConflict) as refused:
        given.decide(progress)
    assert "clicks: batch 7 was refused: " in refused.value.message
    assert reason in refused.value.message
    assert hint in refused.value.hint


def test_a_transactional_sink_stores_the_number_the_content_and_the_offsets_of_the_sources():
    made = batch(7, 50, 60).with_offsets(Progress({CONTENT: 3}, last_batch=11, epoch=2))
    content = (8 << 32) + 60
    assert made.ranges == (Range(CLICKS, 50, 60), Range(QUERY, 7, 8), Range(CONTENT, 3, content))
    assert (made.id, made.topic_ids, made.epoch) == (12, {QUERY.topic: "q1"}, 2)


def test_repeats_have_one_fingerprint_and_other_batches_another():
    same, again, next_one, replanned, other_query = (
        given.numbered(5).fingerprint
        for given in (
            batch(7, 50, 60),
            batch(7, 50, 60),
            batch(8, 60, 60),
            batch(7, 50, 65),
            batch(7, 50, 60, query="q2"),
        )
    )
    assert same == again
    assert len({same, next_one, replanned, other_query}) == 4


@pytest.mark.parametrize("given", [batch(0, 10, 10), batch(7, 50, 60), batch(7, 50, 50), batch(7)])
def test_a_batch_that_was_stored_is_a_repeat_and_the_next_one_follows(given):
    for before in (Progress(), Progress(given.start_offsets(), topic_ids={QUERY.topic: "q0"})):
        progress = before.advanced(given.with_offsets(before))
        assert given.decide(progress) is SKIP
        until = given.sources[0].until if given.sources else None
        assert batch(given.number + 1, until, until and until + 5).decide(progress) is WRITE


def test_the_offsets_of_a_query_only_grow():
    offsets = [given.content_offset for given in (batch(0, 9, 9), batch(1, 9, 9), batch(2, content="f" * 20), batch(3))]
    assert offsets == sorted(set(offsets))
    assert all(batch(n).start_offsets()[CONTENT] <= batch(n).content_offset for n in range(3))
