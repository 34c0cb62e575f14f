"""Numbers read one by one while others write, put together to what was there at one moment."""

from headrace.connectors.zookeeper import znodes
from headrace.connectors.zookeeper.znodes import VersionedOffset
from headrace.core.state import RunLease, State
from headrace.types import Batch, Progress, Range, TopicPartition

A, B = TopicPartition("clicks", 0), TopicPartition("clicks", 1)


def test_what_is_written_is_read_back():
    numbers = {A: VersionedOffset(10, 3), B: VersionedOffset(7, 0)}
    progress = Progress({A: 10, B: 7}, Batch(2, (Range(A, 10, 20),), {"clicks": "id"}), {"clicks": "id"}, 1)
    state = State(progress, RunLease("host", 1, 1.0, 2.0))
    text = znodes.encode(state, numbers)
    assert znodes.read_numbers(text) == numbers
    assert znodes.decode(text, numbers) == state


def test_a_number_that_a_tool_set_back_begins_an_epoch():
    state = State(Progress({A: 10, B: 7}, Batch(2, (Range(A, 10, 20),), epoch=1), last_batch=1, epoch=1))
    text = znodes.encode(state, {A: VersionedOffset(10, 3), B: VersionedOffset(7, 0)})
    forward = znodes.decode(text, {A: VersionedOffset(10, 3), B: VersionedOffset(9, 1)})
    assert (forward.progress.epoch, forward.progress.pending) == (1, state.progress.pending)
    back = znodes.decode(text, {A: VersionedOffset(3, 4), B: VersionedOffset(7, 0)})
    assert back.progress == Progress({A: 3, B: 7}, last_batch=2, epoch=2)  # the abandoned batch keeps its number


def test_a_number_set_within_the_pending_batch_begins_an_epoch_for_its_rows_may_be_stored():
    state = State(Progress({A: 10}, Batch(2, (Range(A, 10, 20),)), last_batch=1))
    text = znodes.encode(state, {A: VersionedOffset(10, 3)})
    assert znodes.decode(text, {A: VersionedOffset(12, 4)}).progress == Progress({A: 12}, last_batch=2, epoch=1)
    assert znodes.decode(text, {A: VersionedOffset(20, 4)}).progress == Progress({A: 20}, last_batch=2)


def test_a_number_that_a_tool_deleted_begins_an_epoch():
    text = znodes.encode(
        State(Progress({A: 10, B: 7}, last_batch=1)), {A: VersionedOffset(10, 3), B: VersionedOffset(7, 0)}
    )
    assert znodes.decode(text, {A: VersionedOffset(10, 3)}).progress == Progress({A: 10}, last_batch=1, epoch=1)


def test_what_earlier_versions_wrote_is_read():
    text = b'{"last_batch":1,"topic_ids":{},"pending":null,"run":null,"offsets":{"clicks":{"0":[10,3]}}}'
    assert znodes.decode(text, {A: VersionedOffset(10, 3)}) == State(Progress({A: 10}, last_batch=1))


def test_nothing_written_yet_is_an_empty_state():
    assert znodes.read_numbers(b"") == {}
    assert znodes.decode(b"", {}) == State()


def test_a_number_found_before_a_swap_that_the_text_tells_of_is_as_the_swap_left_it():
    left, found, now = {A: VersionedOffset(20, 4)}, {A: VersionedOffset(10, 3)}, {A: VersionedOffset(20, 4)}
    assert znodes.find_outdated(left, found) == {A}
    assert znodes.merge_numbers(left, found, now) == left


def test_a_number_that_a_swap_after_the_text_moved_on_is_as_the_text_says():
    assert znodes.merge_numbers(
        {A: VersionedOffset(20, 4)}, {A: VersionedOffset(10, 3)}, {A: VersionedOffset(30, 5)}
    ) == {A: VersionedOffset(20, 4)}


def test_a_number_ahead_of_the_text_was_set_by_a_tool():
    left, found = {A: VersionedOffset(20, 4)}, {A: VersionedOffset(3, 5), B: VersionedOffset(1, 0)}
    assert znodes.find_outdated(left, found) == set()
    assert znodes.merge_numbers(left, found, {}) == found


def test_a_node_recreated_manually_counts_and_one_deleted_is_gone():
    left, found = {A: VersionedOffset(20, 4), B: VersionedOffset(20, 4)}, {A: VersionedOffset(3, 0)}
    assert znodes.find_outdated(left, found) == {A, B}
    assert znodes.merge_numbers(left, found, {A: VersionedOffset(3, 0), B: None}) == {A: VersionedOffset(3, 0)}
