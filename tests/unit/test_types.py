"""The frozen values: what they refuse, and that a batch survives its journal unchanged."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.state import State
from headrace.types import Batch, Progress, Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)

partitions = st.builds(TopicPartition, st.text(max_size=20), st.integers(0, 2**31 - 1))
spans = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)).map(sorted)
ranges = st.dictionaries(partitions, spans, max_size=6).map(
    lambda found: tuple(Range(at, *span) for at, span in found.items())
)
topic_ids = st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3)
batches = st.builds(Batch, st.integers(0, 2**63 - 1), ranges, topic_ids, st.integers(0, 2), st.integers(0, 2))


@given(batches)
def test_a_batch_comes_back_from_its_journal_unchanged(batch):
    back = Batch.from_json(batch.to_json())
    assert back == batch
    assert back.topic_ids == batch.topic_ids
    assert back.fingerprint == batch.fingerprint


@given(batches, batches)
def test_fingerprints_are_equal_exactly_when_ranges_topic_ids_and_epoch_are(one, other):
    same = (one.ranges, one.topic_ids, one.epoch) == (other.ranges, other.topic_ids, other.epoch)
    assert (one.fingerprint == other.fingerprint) == same


@given(batches, st.integers(0, 2**63 - 1), st.randoms())
def test_neither_the_id_nor_the_order_of_ranges_changes_the_fingerprint(batch, number, random):
    shuffled = list(batch.ranges)
    random.shuffle(shuffled)
    again = Batch(number, tuple(shuffled), batch.topic_ids, epoch=batch.epoch)
    assert again.fingerprint == batch.fingerprint
    assert again.ranges == batch.ranges


def test_a_longer_range_has_another_fingerprint():
    assert Batch(1, (Range(A, 0, 10),)).fingerprint != Batch(1, (Range(A, 0, 11),)).fingerprint


def test_the_names_that_earlier_versions_gave_stay_valid():
    """Directories and ledgers have them."""
    batch = Batch(1, (Range(A, 0, 10),), {"clicks": "id-1"})
    assert batch.fingerprint == "92ba9ac791002fb66793"
    assert dataclasses.replace(batch, epoch=1).fingerprint != batch.fingerprint


def test_what_earlier_versions_journalled_is_read():
    journalled = '{"id": 1, "ranges": [["clicks", 0, 0, 10]], "topic_ids": {"clicks": "id-1"}}'
    batch = Batch(1, (Range(A, 0, 10),), {"clicks": "id-1"})
    assert Batch.from_json(journalled) == batch
    assert batch.to_json() == journalled
    rest = '"topic_ids": {}, "last_batch": 3, "run": null'
    text = f'{{"offsets": {{"clicks": {{"0": 5}}}}, "pending": {journalled}, {rest}}}'
    assert State.from_json(text) == State(Progress({A: 5}, batch, {}, 3))


def test_a_recreated_topic_has_another_fingerprint():
    old, new = Batch(1, (Range(A, 0, 10),), {"clicks": "old"}), Batch(1, (Range(A, 0, 10),), {"clicks": "new"})
    assert old.fingerprint != new.fingerprint
    assert old != new


def test_a_batch_may_not_name_a_partition_twice():
    with pytest.raises(ValueError, match="batch 7 contains a partition twice"):
        Batch(7, (Range(A, 0, 10), Range(A, 10, 20)))


@pytest.mark.parametrize(("start", "until"), [(-1, 0), (5, 4), (-2, -1)])
def test_a_range_that_runs_backwards_or_below_zero_is_refused(start, until):
    with pytest.raises(ValueError, match=r"expected start <= until in clicks\[0\]"):
        Range(A, start, until)


def test_an_empty_range_is_a_position_and_covers_nothing():
    assert len(Range(A, 42, 42)) == 0
    assert len(Batch(1, (Range(A, 42, 42), Range(B, 3, 5)))) == 2


@pytest.mark.parametrize(
    ("value", "field"),
    [(A, "partition"), (Range(A, 0, 1), "until"), (Batch(1, ()), "ranges"), (Progress(), "offsets")],
)
def test_no_value_can_be_changed(value, field):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)


def test_values_say_what_they_are():
    assert str(A) == "clicks[0]"
    assert str(Range(A, 3, 9)) == "clicks[0] [3, 9)"


def test_a_committed_batch_moves_its_own_partitions_and_no_others():
    begun = Batch(4, (Range(A, 10, 20),), {"clicks": "id"})
    before = Progress({A: 10, B: 7}, pending=begun, topic_ids={"orders": "other"}, last_batch=3)
    assert before.advanced(begun) == Progress({A: 20, B: 7}, None, {"orders": "other", "clicks": "id"}, 4)


def test_a_batch_is_behind_where_the_offsets_have_moved_on():
    progress = Progress({A: 10})
    assert progress.behind(Batch(1, (Range(A, 10, 20), Range(B, 5, 6)))) == []
    assert progress.behind(Batch(1, (Range(A, 9, 20), Range(B, 5, 6)))) == [Range(A, 9, 20)]


@pytest.mark.parametrize("ranges", [(), (Range(A, 7, 7),)])
def test_a_pending_batch_of_no_offsets_counts_and_is_stored(ranges):
    state = State(Progress(pending=Batch(5, ranges), last_batch=4))
    assert state.progress.newest == 5
    assert State.from_json(state.to_json()) == state
