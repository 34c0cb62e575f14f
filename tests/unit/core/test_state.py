"""What may follow what in the stored state of a pipeline."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.state import AuditEntry, RunLease, State, moves_back, refuse_conflict
from headrace.errors import DataLoss, OffsetConflict
from headrace.types import Batch, Progress, Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)
IDS = {"clicks": "id-1"}


def batch(number, *ranges, topic_ids=IDS, **more):
    return Batch(number, tuple(Range(*r) for r in ranges), topic_ids, **more)


NEXT = batch(3, (A, 10, 15), (B, 5, 6))
STORED = Progress({A: 10, B: 5}, topic_ids=IDS, last_batch=2)
PENDING = replace(STORED, pending=NEXT)


@pytest.mark.parametrize(
    ("progress", "following"),
    [
        (Progress(), NEXT),
        (STORED, NEXT),
        (STORED, batch(3, (A, 10, 10))),
        (STORED, batch(3, (TopicPartition("clicks", 7), 40, 50))),
        (STORED, batch(3, (A, 10, 15), topic_ids={})),
        (replace(STORED, topic_ids={}), NEXT),
        (STORED, batch(3, (TopicPartition("views", 0), 0, 1), topic_ids={"views": "another"})),
        (PENDING, NEXT),
    ],
    ids=[
        "a new pipeline",
        "where the offsets are",
        "an empty range",
        "a new partition",
        "no topic ids in the batch",
        "no topic ids in the store",
        "a new topic",
        "the pending batch itself",
    ],
)
def test_a_batch_that_may_follow_is_begun_and_committed(progress, following):
    refuse_conflict(progress, following)
    begun = State(progress).begun(following)
    assert begun.progress == replace(progress, pending=following)
    committed = begun.committed(following).progress
    assert committed == State(progress).committed(following).progress
    assert (committed.pending, committed.last_batch) == (None, following.id)
    assert committed.offsets == {**progress.offsets, **{r.at: r.until for r in following.ranges}}


@pytest.mark.parametrize(
    ("progress", "following", "reason"),
    [
        (STORED, batch(3, (A, 9, 15)), r"clicks\[0\] \[9, 15\) starts at 9, the stored offset is 10"),
        (STORED, batch(3, (A, 11, 15)), "starts at 11, the stored offset is 10"),
        (STORED, batch(3, (A, 10, 15), topic_ids={"clicks": "id-2"}), "recreated.*topic id id-2, the store has id-1"),
        (PENDING, batch(3, (A, 10, 14), (B, 5, 6)), "batch 3 is pending .it reads other ranges"),
        (PENDING, replace(NEXT, id=4), "batch 3 is pending .the same ranges under another id"),
        (PENDING, replace(NEXT, topic_ids={"clicks": "id-2"}), "its topics have other ids"),
    ],
)
def test_a_batch_that_may_not_follow_is_refused_with_the_reason(progress, following, reason):
    for step in (State(progress).begun, State(progress).committed):
        with pytest.raises(OffsetConflict, match=reason) as refused:
            step(following)
        assert refused.value.hint


def test_a_pending_batch_of_which_the_store_lost_a_part_is_data_loss():
    lost = replace(STORED, pending=replace(NEXT, ranges=NEXT.ranges[:1], missing=1))
    with pytest.raises(DataLoss, match="a topic of batch 3 was deleted"):
        State(lost).committed(NEXT)


@pytest.mark.parametrize(
    ("epoch", "pending", "refused"), [(2, None, False), (1, None, True), (3, None, True), (1, NEXT, False)]
)
def test_a_batch_of_another_epoch_is_refused_unless_it_is_the_pending_one(epoch, pending, refused):
    following = replace(NEXT, epoch=epoch)
    state = State(replace(STORED, epoch=2, pending=pending and following))
    if refused:
        with pytest.raises(OffsetConflict, match="moved back"):
            state.check_epoch(following)
    else:
        assert state.check_epoch(following) is state


RUN = RunLease("host", 1, started=5.0, beat=9.0)


@pytest.mark.parametrize(
    ("own", "held", "refused"),
    [
        (None, None, False),
        (None, RUN, False),
        (RUN, None, False),
        (RUN, replace(RUN, beat=99.0), False),
        (RUN, replace(RUN, pid=2), True),
        (RUN, replace(RUN, started=6.0), True),
        (RUN, replace(RUN, host="another"), True),
    ],
)
def test_a_run_that_another_has_taken_over_from_is_refused(own, held, refused):
    state = State(run=held)
    if refused:
        with pytest.raises(OffsetConflict, match="has taken over from pid 1 on host"):
            state.check_lease(own)
    else:
        assert state.check_lease(own) is state


@pytest.mark.parametrize(
    ("before", "after", "back"),
    [
        (STORED, {A: 10, B: 5}, False),
        (STORED, {A: 99, B: 5}, False),
        (STORED, {A: 9, B: 5}, True),
        (STORED, {A: 10}, True),
        (PENDING, {A: 15, B: 6}, False),
        (PENDING, {A: 10, B: 5}, True),
        (PENDING, {A: 15, B: 5}, True),
    ],
)
def test_offsets_move_back_where_records_that_may_be_stored_are_read_again(before, after, back):
    assert moves_back(before, after) is back


@pytest.mark.parametrize("before", [STORED, PENDING], ids=["nothing pending", "pending"])
@pytest.mark.parametrize("offset", [0, 10, 15, 20])
def test_offsets_that_are_set_drop_the_pending_batch_and_keep_its_number(before, offset):
    after = State(before).moved(before, {A: offset}, {"views": "id-9"}).progress
    assert after.offsets == {A: offset, B: 5}
    assert (after.pending, after.last_batch) == (None, before.newest)
    assert after.topic_ids == {"clicks": "id-1", "views": "id-9"}
    assert after.epoch == before.epoch + moves_back(before, {**before.offsets, A: offset})


def test_offsets_that_changed_since_they_were_read_are_not_set():
    with pytest.raises(OffsetConflict, match="changed since they were read"):
        State(PENDING).moved(STORED, {A: 0}, {})


def test_progress_is_imported_into_an_empty_store_only():
    assert State(run=RUN).imported(PENDING) == State(PENDING, RUN)
    with pytest.raises(OffsetConflict, match="expected no stored offsets"):
        State(STORED).imported(PENDING)


# what is stored as text

names = st.text(min_size=1, max_size=8)
partitions = st.builds(TopicPartition, names, st.integers(0, 99))
offsets = st.dictionaries(partitions, st.integers(0, 2**62), max_size=4)
numbers = st.integers(0, 10**9)
ranges = offsets.map(lambda given: tuple(Range(at, offset, offset + 3) for at, offset in given.items()))
batches = st.builds(Batch, numbers, ranges, st.dictionaries(names, names, max_size=3), st.integers(0, 3), numbers)
leases = st.builds(RunLease, names, numbers, st.floats(0, 1e10), st.floats(0, 1e10), st.none() | names)
progresses = st.builds(
    Progress, offsets, st.none() | batches, st.dictionaries(names, names, max_size=3), numbers, numbers
)


@given(st.builds(State, progresses, st.none() | leases))
def test_a_state_is_read_as_it_was_stored(state):
    assert State.from_json(state.to_json()) == state


@given(leases)
def test_a_lease_is_read_as_it_was_stored(lease):
    assert RunLease.from_json(lease.to_json()) == lease


@given(st.builds(AuditEntry, st.floats(0, 1e10), names, names, offsets, offsets, names, st.none() | numbers))
def test_an_audit_entry_is_read_as_it_was_stored(entry):
    read = AuditEntry.from_json(entry.to_json())
    assert (read, read.last_batch) == (entry, entry.last_batch)
