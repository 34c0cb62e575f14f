"""A state spread over the metadata of commits is the same state when it is read back."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.state import RunLease, State
from headrace.kafka import commit_metadata
from headrace.kafka.commit_metadata import CommittedOffset
from headrace.types import Batch, Progress, Range, TopicPartition

PARTITIONS = [TopicPartition(topic, number) for topic in ("clicks", "views") for number in range(3)]
A, B = PARTITIONS[:2]

offsets = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 2**62), max_size=6)
runs = st.none() | st.builds(RunLease, st.text(max_size=5), st.integers(1, 9), st.just(1.0), st.floats(0, 9))


@st.composite
def states(draw):
    stored = draw(offsets)
    pending = None
    if draw(st.booleans()):
        taken = draw(st.sets(st.sampled_from(PARTITIONS), min_size=1))
        starts = {at: stored.get(at, draw(st.integers(0, 99))) for at in taken}
        ranges = tuple(Range(at, start, start + draw(st.integers(0, 9))) for at, start in starts.items())
        pending = Batch(draw(st.integers(1, 99)), ranges, {at.topic: f"new id of {at.topic}" for at in taken})
    topic_ids = {at.topic: f"id of {at.topic}" for at in stored}
    last, epoch = draw(st.integers(0, 99)), draw(st.integers(0, 3))
    pending = pending and replace(pending, epoch=epoch)
    state = State(Progress(stored, pending, topic_ids, last, epoch), draw(runs))
    return state if stored or pending else State()  # without a partition there is nothing to write on


@settings(max_examples=300, deadline=None)
@given(st.lists(states(), min_size=1, max_size=5), st.booleans())
def test_whatever_follows_whatever_is_read_back_as_it_was_written(sequence, everything):
    group: dict[TopicPartition, CommittedOffset] = {}
    last = epoch = 0
    for state in sequence:
        last, epoch = max(last, state.progress.last_batch), max(epoch, state.progress.epoch)  # neither goes back
        wanted = replace(state, progress=replace(state.progress, last_batch=last, epoch=epoch))
        group |= commit_metadata.metadata_updates(group, wanted, everything=everything)
        if group:
            assert commit_metadata.decode_group(group) == wanted
            assert commit_metadata.is_complete(group)


def test_partitions_that_another_handle_added_show_in_those_that_are_known():
    group = commit_metadata.metadata_updates({}, State(Progress({A: 1})))
    added = {**group, **commit_metadata.metadata_updates(group, State(Progress({A: 1, B: 1})))}
    assert not commit_metadata.is_complete({A: added[A]})
    assert commit_metadata.is_complete(added)


def test_a_commit_that_touches_nothing_else_is_written_on_one_partition():
    state = State(Progress(dict.fromkeys(PARTITIONS, 5)))
    group = commit_metadata.metadata_updates({}, state)
    signed = replace(state, run=RunLease("host", 1, 1.0, 2.0))
    assert len(commit_metadata.metadata_updates(group, signed)) == 1
    assert len(commit_metadata.metadata_updates(group, signed, everything=True)) == len(PARTITIONS)


def test_metadata_that_is_not_ours_leaves_the_position():
    for text in ("", "a note", '{"headrace":', '{"headrace":1}', '{"headrace":1,"of":1,"at":3,"last":1}'):
        assert commit_metadata.decode_group({A: CommittedOffset(7, text)}) == State(Progress({A: 7}))


VIEWS = TopicPartition("views", 0)


def test_deleting_a_topic_marks_the_pending_batch_incomplete():
    pending = Batch(2, (Range(A, 1, 5), Range(VIEWS, 1, 5)))
    group = commit_metadata.metadata_updates({}, State(Progress({A: 1, VIEWS: 1}, pending)))
    del group[VIEWS]
    left = Batch(2, (Range(A, 1, 5),), missing=1)
    state = commit_metadata.decode_group(group)
    assert state.progress.pending == left
    # It stays incomplete, whatever is written next.
    group |= commit_metadata.metadata_updates(group, replace(state, run=RunLease("host", 1, 1.0, 2.0)), everything=True)
    assert commit_metadata.decode_group(group).progress.pending == left


def test_deleting_every_topic_of_the_pending_batch_leaves_a_trace_of_it():
    pending = Batch(2, (Range(VIEWS, 1, 5),))
    state = State(Progress({A: 1, B: 1, VIEWS: 1}, pending))
    group = commit_metadata.metadata_updates({}, state)
    assert commit_metadata.decode_group(group) == state
    del group[VIEWS]
    assert commit_metadata.decode_group(group).progress.pending == Batch(2, (), missing=1)
    after = commit_metadata.decode_group(group).committed(Batch(2, (), missing=1))
    group |= commit_metadata.metadata_updates(group, after)
    assert commit_metadata.decode_group(group).progress == Progress({A: 1, B: 1}, last_batch=2)


def test_a_position_set_by_another_tool_abandons_the_pending_batch():
    pending = Batch(2, (Range(A, 1, 5), Range(VIEWS, 1, 5)))
    group = commit_metadata.metadata_updates({}, State(Progress({A: 1, VIEWS: 1}, pending)))
    moved = {**group, VIEWS: CommittedOffset(3, "")}
    assert commit_metadata.decode_group(moved).progress.pending is None
    # Where entries are gone as well, nobody can tell which of them had a part in it.
    elsewhere = {
        **commit_metadata.metadata_updates({}, State(Progress({A: 1, B: 1, VIEWS: 1}, pending))),
        B: CommittedOffset(9, ""),
    }
    del elsewhere[VIEWS]
    assert commit_metadata.decode_group(elsewhere).progress.pending == Batch(2, (Range(A, 1, 5),), missing=1)


def test_a_position_set_by_another_tool_begins_an_epoch():
    group = commit_metadata.metadata_updates({}, State(Progress({A: 5, B: 5}, last_batch=1)))
    moved = {**group, B: CommittedOffset(2, "")}
    state = commit_metadata.decode_group(moved)
    assert state.progress == Progress({A: 5, B: 2}, last_batch=1, epoch=1)
    # Once the store has written, the position is its own: the epoch stays.
    moved |= commit_metadata.metadata_updates(moved, replace(state, run=RunLease("host", 1, 1.0, 2.0)))
    assert commit_metadata.decode_group(moved).progress.epoch == 1


def test_positions_that_were_all_set_by_another_tool_begin_an_epoch_that_no_batch_had():
    moved = {A: CommittedOffset(0, ""), B: CommittedOffset(0, "")}
    state = commit_metadata.decode_group(moved, unknown_epoch=1_700_000_000)
    assert state.progress == Progress({A: 0, B: 0}, epoch=1_700_000_000)
    assert commit_metadata.foreign_offsets(moved) == {A: 0, B: 0}
    moved |= commit_metadata.metadata_updates(moved, replace(state, run=RunLease("host", 1, 1.0, 2.0)))
    assert commit_metadata.decode_group(moved, unknown_epoch=1_800_000_000).progress.epoch == 1_700_000_000
    assert commit_metadata.foreign_offsets(moved) == {}
    assert commit_metadata.decode_group({}, unknown_epoch=1_700_000_000) == State()


def test_taking_over_entries_keeps_the_epoch_that_was_read():
    group = commit_metadata.metadata_updates({}, State(Progress({A: 5, B: 5}, last_batch=1, epoch=3)))
    moved = {**group, B: CommittedOffset(2, "")}
    retaken = {at: commit_metadata.reissue(moved, 99, entry) for at, entry in moved.items()}
    assert (
        commit_metadata.decode_group(retaken, 99).progress.epoch
        == commit_metadata.decode_group(moved, 99).progress.epoch
        == 4
    )
    every = {A: CommittedOffset(0, ""), B: CommittedOffset(0, "")}
    assert (
        commit_metadata.decode_group(
            {at: commit_metadata.reissue(every, 99, entry) for at, entry in every.items()}
        ).progress.epoch
        == 99
    )


def test_a_journal_written_before_this_version_is_read():
    metadata = '{"headrace":3,"of":2,"at":1,"last":1,"topic":"id","begun":[2,5,2,"id"]}'
    group = {A: CommittedOffset(1, metadata), VIEWS: CommittedOffset(1, metadata)}
    pending = Batch(2, (Range(A, 1, 5), Range(VIEWS, 1, 5)), {"clicks": "id", "views": "id"})
    assert commit_metadata.decode_group(group).progress == Progress(
        {A: 1, VIEWS: 1}, pending, {"clicks": "id", "views": "id"}, 1
    )
    del group[VIEWS]
    assert commit_metadata.decode_group(group).progress.pending == Batch(
        2, (Range(A, 1, 5),), {"clicks": "id"}, missing=1
    )
