"""Gaps between the offsets of a pipeline and the logs of its topics."""

from datetime import timedelta

import pytest

from headrace.core.gaps import (
    RECREATED,
    Gap,
    find_gaps,
    lag_skips,
    part_of,
    resume_offset,
    skipped_by_start,
    still_readable,
    unread_of_deleted,
    with_undelivered,
)
from headrace.core.planner import TopicLog
from headrace.types import Batch, Progress, Range, TopicPartition

A, B, C = (TopicPartition("clicks", number) for number in range(3))


def log(beginnings, ends, topic_id="id-1"):
    return TopicLog(topic_id, beginnings, ends)


def test_offsets_within_the_log_are_no_gap():
    logs = {"clicks": log({A: 3, B: 0, C: 5}, {A: 9, B: 4, C: 5})}
    assert find_gaps(Progress({A: 3, B: 4, C: 5}, topic_ids={"clicks": "id-1"}), logs) == []


def test_records_that_aged_out_are_a_gap_with_its_exact_range():
    (gap,) = find_gaps(Progress({A: 3, B: 2}), {"clicks": log({A: 8, B: 0}, {A: 9, B: 4})})
    assert gap.lost == Range(A, 3, 8)
    assert str(gap) == "clicks[0] [3, 8): the broker has deleted these records"


def test_a_log_that_ends_before_the_stored_offset_is_a_gap():
    (gap,) = find_gaps(Progress({A: 20}), {"clicks": log({A: 0}, {A: 9})})
    assert gap.lost == Range(A, 9, 20)
    assert "9" in gap.reason


@pytest.mark.parametrize("end", [0, 20, 500])
def test_a_topic_recreated_is_a_gap_however_long_its_new_log_is(end):
    progress = Progress({A: 20}, topic_ids={"clicks": "old"})
    (gap,) = find_gaps(progress, {"clicks": log({A: 0}, {A: end}, topic_id="new")})
    assert gap.lost.at == A
    assert "created again" in gap.reason


def test_a_topic_whose_id_was_never_noted_is_judged_by_its_offsets_alone():
    assert find_gaps(Progress({A: 5}), {"clicks": log({A: 0}, {A: 9}, topic_id="new")}) == []


def test_a_partition_never_read_has_no_gap():
    assert find_gaps(Progress(), {"clicks": log({A: 100}, {A: 200})}) == []


def test_offsets_of_partitions_that_a_topic_recreated_has_not_are_a_gap_too():
    progress = Progress({A: 500, B: 500}, topic_ids={"clicks": "old"})
    log = TopicLog("new", {A: 0}, {A: 100})
    found = find_gaps(progress, {"clicks": log})
    assert [gap.lost.at for gap in found] == [A, B]
    assert [resume_offset(gap, log, "latest") for gap in found] == [100, 0]


# a topic that was deleted or recreated while it was read


def test_records_that_a_deleted_topic_had_and_that_were_not_read_are_a_gap():
    other = TopicPartition("orders", 0)
    ends = {A: 9, B: 4, other: 7}
    (gap,) = unread_of_deleted(Progress({A: 5, B: 4, other: 0}), ends, {"orders"})
    assert str(gap) == "clicks[0] [5, 9): the topic was deleted"


def test_the_gap_of_a_recreated_topic_has_the_ranges_of_the_undelivered_batch():
    batch = Batch(1, (Range(A, 0, 10), Range(B, 0, 5)))
    empty = [Gap(Range(at, 0, 0), RECREATED) for at in (A, B)]
    progress = Progress({A: 0, B: 5})  # the task that wrote B has committed
    assert [gap.lost for gap in with_undelivered(empty, batch, progress)] == [Range(A, 0, 10), Range(B, 0, 0)]
    assert with_undelivered(empty, None, progress) == empty


def test_other_gaps_are_not_widened_by_the_undelivered_batch():
    aged = [Gap(Range(A, 0, 3), "the broker has deleted these records")]
    assert with_undelivered(aged, Batch(1, (Range(A, 0, 10),)), Progress({A: 0})) == aged


# a batch that was begun


@pytest.mark.parametrize(
    ("beginning", "end", "kept", "lost"),
    [
        (0, 20, [Range(A, 5, 10)], []),
        (7, 20, [Range(A, 7, 10)], [Range(A, 5, 7)]),
        (0, 8, [Range(A, 5, 8)], [Range(A, 8, 10)]),
        (7, 8, [Range(A, 7, 8)], [Range(A, 5, 7), Range(A, 8, 10)]),
        (10, 20, [], [Range(A, 5, 10)]),
        (0, 5, [], [Range(A, 5, 10)]),
    ],
)
def test_what_is_left_of_a_range_lies_between_what_the_log_lacks(beginning, end, kept, lost):
    found = still_readable(Batch(1, (Range(A, 5, 10),)), {"clicks": log({A: beginning}, {A: end})})
    assert found[0] == tuple(kept)
    assert [gap.lost for gap in found[1]] == lost


@pytest.mark.parametrize("logs", [{}, {"clicks": log({A: 0}, {A: 20}, "new")}, {"clicks": log({B: 0}, {B: 20}, "old")}])
def test_nothing_is_left_of_a_range_whose_topic_or_partition_is_gone(logs):
    kept, (gap,) = still_readable(Batch(1, (Range(A, 5, 10),), {"clicks": "old"}), logs)
    assert (kept, gap.lost) == ((), Range(A, 5, 10))


def test_a_part_of_a_batch_names_only_the_topics_it_reads():
    other = TopicPartition("orders", 0)
    batch = Batch(3, (Range(A, 0, 5), Range(other, 0, 5)), {"clicks": "1", "orders": "2"}, missing=1)
    assert part_of(batch, (Range(A, 0, 4),)) == Batch(3, (Range(A, 0, 4),), {"clicks": "1"})


# skipped on purpose


def test_a_lag_is_measured_in_offsets_or_by_the_first_young_offset():
    progress, ends = Progress({A: 0, B: 90}), {A: 100, B: 100, C: 100}
    (gap,) = lag_skips(progress, ends, 20, {})
    assert str(gap) == "clicks[0] [0, 80): skipped: more than max_lag=20 offsets behind"
    old, none_young = lag_skips(progress, ends, timedelta(minutes=1), {A: 40})
    assert (old.lost, none_young.lost) == (Range(A, 0, 40), Range(B, 90, 100))


def test_a_fresh_start_skips_forward_and_never_back():
    (gap,) = skipped_by_start(Progress({A: 5, B: 5, C: 5}), {A: 9, B: 2})
    assert str(gap) == "clicks[0] [5, 9): skipped: resume=False"
