"""How ranges are dealt out to tasks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as some

from headrace.engine.range_splitting import MIN_SPLIT_RECORDS, MIN_TASK_RECORDS, split, task_count
from headrace.types import Range, TopicPartition


def ranges(*lengths):
    return [Range(TopicPartition("t", number), 10, 10 + length) for number, length in enumerate(lengths)]


def test_a_long_range_is_cut_so_that_every_core_has_a_share():
    assert [len(piece) for piece in split(ranges(1_000_000), 4)] == [250_000] * 4
    assert [len(piece) for piece in split(ranges(900_000, 100_000), 2)] == [450_000, 450_000, 100_000]


def test_short_ranges_stay_whole():
    assert split(ranges(MIN_SPLIT_RECORDS, 10, 0), 8) == ranges(MIN_SPLIT_RECORDS, 10, 0)


def test_many_short_ranges_are_read_by_few_tasks_and_long_ones_by_their_own():
    assert task_count(ranges(*[3] * 1_000), 2) == 8
    assert task_count(ranges(*[MIN_TASK_RECORDS] * 100), 2) == 100
    assert task_count(ranges(3, 3), 2) == 2


@given(some.lists(some.integers(0, 500_000), max_size=20), some.integers(1, 16))
def test_pieces_are_the_same_records_in_the_same_order(lengths, cores):
    whole = ranges(*lengths)
    pieces = split(whole, cores)
    for one in whole:
        own = [piece for piece in pieces if piece.at == one.at]
        assert (own[0].start, own[-1].until) == (one.start, one.until)
        assert all(before.until == after.start for before, after in pairwise(own))
    assert [piece.at for piece in pieces] == sorted(piece.at for piece in pieces)
