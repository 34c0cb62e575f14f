"""The planner as properties: limits hold, nothing is skipped, nobody starves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.planner import Limits, TopicLog, caught_up, first_positions, lag, plan
from headrace.errors import ConfigError
from headrace.types import Progress, Range, TopicPartition

A, B, C = (TopicPartition("clicks", number) for number in range(3))

partitions = st.builds(TopicPartition, st.sampled_from(["clicks", "orders", "a.b"]), st.integers(0, 20))
waiting = st.dictionaries(partitions, st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=12)
limits = st.builds(Limits, st.integers(1, 10**5), st.none() | st.integers(1, 10**4))


def world(found):
    """Partitions with (position, lag) as the planner sees them."""
    progress = Progress({at: position for at, (position, _) in found.items()}, last_batch=4)
    return progress, {at: position + behind for at, (position, behind) in found.items()}


@given(waiting, limits)
def test_a_batch_never_passes_its_limits(found, limit):
    progress, ends = world(found)
    batch = plan(progress, ends, limit, {})
    if batch is not None:
        assert 0 < len(batch) <= limit.max_records
        assert all(len(r) <= (limit.per_partition or len(r)) for r in batch.ranges)


@given(waiting, limits)
def test_every_range_starts_at_its_position_and_ends_within_the_log(found, limit):
    progress, ends = world(found)
    batch = plan(progress, ends, limit, {})
    for r in batch.ranges if batch else ():
        assert r.start == progress.offsets[r.at]
        assert r.start < r.until <= ends[r.at]


@given(waiting, limits)
def test_the_budget_is_used_up_as_long_as_there_is_something_to_read(found, limit):
    progress, ends = world(found)
    batch = plan(progress, ends, limit, {})
    wanted = sum(min(behind, limit.per_partition or behind) for _, behind in found.values())
    assert (0 if batch is None else len(batch)) == min(wanted, limit.max_records)


@given(waiting, limits)
def test_no_partition_with_records_is_left_out_of_a_batch_that_has_room_for_all(found, limit):
    progress, ends = world(found)
    behind = {at for at in ends if ends[at] > progress.offsets[at]}
    if 0 < len(behind) <= limit.max_records:
        assert {r.at for r in plan(progress, ends, limit, {}).ranges} == behind


@given(waiting, limits)
def test_a_short_partition_gets_all_it_has_before_a_long_one_gets_more(found, limit):
    progress, ends = world(found)
    batch = plan(progress, ends, limit, {})
    taken = {r.at: len(r) for r in batch.ranges} if batch else {}
    cut_short = [n for at, n in taken.items() if n < min(found[at][1], limit.per_partition or found[at][1])]
    if len(taken) == sum(behind > 0 for _, behind in found.values()):
        assert all(n <= min(cut_short, default=n) + 1 for n in taken.values())


@given(st.integers(2, 12), st.integers(1, 11), st.integers(0, 1000))
def test_a_budget_smaller_than_the_partitions_goes_round_and_reaches_every_one(count, budget, first):
    everywhere = [TopicPartition("clicks", number) for number in range(count)]
    progress = Progress(dict.fromkeys(everywhere, 0), last_batch=first)
    ends = dict.fromkeys(everywhere, 10**6)
    reached = set()
    for _ in range(count):
        batch = plan(progress, ends, Limits(max_records=min(budget, count - 1)), {})
        reached |= {r.at for r in batch.ranges}
        progress = progress.advanced(batch)
    assert reached == set(everywhere)


@given(waiting, limits)
def test_batch_after_batch_reads_every_record_once_and_then_nothing(found, limit):
    progress, ends = world({at: (position, behind % 200) for at, (position, behind) in found.items()})
    start = dict(progress.offsets)
    read = []
    while (batch := plan(progress, ends, limit, {})) is not None:
        assert batch.id == progress.last_batch + 1
        read += batch.ranges
        progress = progress.advanced(batch)
    for at, position in start.items():
        joined = sorted((r.start, r.until) for r in read if r.at == at)
        edges = [position, *(until for _, until in joined)]
        assert [begin for begin, _ in joined] == edges[:-1]
        assert edges[-1] == ends[at]


def test_there_is_no_batch_when_there_is_nothing_to_read():
    assert plan(Progress({A: 5}), {A: 5}, Limits(), {}) is None


def test_an_end_behind_the_position_gives_no_batch():
    assert plan(Progress({A: 5}), {A: 3}, Limits(), {}) is None


def test_a_partition_that_the_source_no_longer_names_is_left_alone():
    batch = plan(Progress({A: 0, TopicPartition("old", 0): 3}), {A: 10}, Limits(), {"clicks": "1"})
    assert batch.ranges == (Range(A, 0, 10),)


def test_a_batch_carries_the_ids_of_the_topics_it_reads_and_of_no_others():
    batch = plan(Progress({A: 0}), {A: 10}, Limits(), {"clicks": "1", "orders": "2"})
    assert batch.topic_ids == {"clicks": "1"}


@pytest.mark.parametrize("field", ["max_records", "per_partition"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "10", True])
def test_a_limit_that_is_no_whole_number_of_records_is_refused_with_an_example(field, value):
    with pytest.raises(ConfigError, match=f"{field}: expected a whole number of records, at least 1") as refused:
        Limits(**{field: value})
    assert refused.value.hint == f"Limits({field}=100_000)"


# where a partition is first read


def log(beginnings, ends, topic_id="id-1"):
    return TopicLog(topic_id, beginnings, ends)


def test_a_topic_new_to_the_pipeline_starts_at_its_beginning_by_default():
    first = first_positions(Progress(), {"clicks": log({A: 3, B: 0}, {A: 9, B: 4})}, "earliest", {})
    assert first == (Range(A, 3, 3), Range(B, 0, 0))


def test_a_topic_new_to_the_pipeline_starts_at_its_end_when_latest_is_asked_for():
    first = first_positions(Progress(), {"clicks": log({A: 3, B: 0}, {A: 9, B: 4})}, "latest", {})
    assert first == (Range(A, 9, 9), Range(B, 4, 4))


def test_a_partition_that_appears_in_a_known_topic_is_read_from_its_beginning_even_with_latest():
    first = first_positions(Progress({A: 7}), {"clicks": log({A: 0, B: 0}, {A: 9, B: 4})}, "latest", {})
    assert first == (Range(B, 0, 0),)


def test_a_second_topic_added_to_a_running_pipeline_starts_where_start_says():
    orders = TopicPartition("orders", 0)
    logs = {"clicks": log({A: 0}, {A: 9}), "orders": log({orders: 2}, {orders: 5})}
    assert first_positions(Progress({A: 7}), logs, "latest", {}) == (Range(orders, 5, 5),)


def test_partitions_already_known_are_never_placed_again():
    assert first_positions(Progress({A: 7}), {"clicks": log({A: 0}, {A: 9})}, "earliest", {}) == ()


# how far


def test_caught_up_means_every_target_is_reached():
    assert caught_up(Progress({A: 5, B: 9}), {A: 5, B: 8})
    assert not caught_up(Progress({A: 5, B: 7}), {A: 5, B: 8})
    assert not caught_up(Progress(), {A: 1})
    assert caught_up(Progress(), {})


def test_lag_counts_what_is_in_the_log_and_not_yet_processed():
    assert lag(Progress({A: 5, B: 9}), {A: 15, B: 9, C: 2}) == 12
    assert lag(Progress({A: 5}), {A: 3}) == 0


def test_an_offset_to_start_at_is_asked_of_the_log_only_where_it_starts():
    """What was read long ago may be deleted: that a source once started there must not end a run."""
    progress = Progress({A: 10}, topic_ids={"clicks": "id"})
    start = {TopicPartition("clicks", 0): 8, TopicPartition("clicks", 1): 3}
    log = TopicLog("id", {A: 9, B: 0}, {A: 30, B: 5})
    assert first_positions(progress, {"clicks": log}, start, {}) == (Range(B, 3, 3),)
    with pytest.raises(ConfigError, match="its log has offsets 4 to 5"):
        first_positions(progress, {"clicks": TopicLog("id", {A: 9, B: 4}, {A: 30, B: 5})}, start, {})
