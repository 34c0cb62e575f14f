"""Which small files become one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.shared.compaction_plan import FileGroup, SmallFile, plan_merges


def small(name, size, partition=""):
    return SmallFile(name, size, "owner", partition)


def planned(files, target=100, schemas=None):
    schemas = schemas or {}
    found = plan_merges(
        files, target, lambda file: schemas.get(file.path, "same"), lambda one, other: one if one == other else None
    )
    return [(merge.partition, [file.path for file in merge.files]) for merge in found]


def test_small_files_go_together_until_the_target_is_reached():
    files = [small(name, 40) for name in "abcdefg"]
    assert planned(files) == [("", ["a", "b", "c"]), ("", ["d", "e", "f"])]


def test_only_files_of_equal_partition_values_go_together():
    files = [small("a", 1, "day=1"), small("b", 1, "day=2"), small("c", 1, "day=1")]
    assert planned(files) == [("day=1", ["a", "c"])]


def test_files_that_are_large_enough_and_files_alone_are_left():
    assert planned([small("a", 80), small("b", 99), small("c", 10)]) == []


def test_files_whose_columns_do_not_fit_are_merged_apart_and_unreadable_ones_left():
    files = [small(name, 1) for name in "abcde"]
    assert planned(files, schemas={"b": "other", "d": "other", "e": None}) == [("", ["a", "c"]), ("", ["b", "d"])]


def test_a_bin_takes_the_schema_that_two_files_have_in_common():
    """The third file fits the first two together, though neither alone."""
    columns = {"a": {"x"}, "b": {"x", "y"}, "c": {"y"}}

    def together(one, other):
        return one | other if one & other else None

    found = plan_merges([small(name, 1) for name in "abc"], 100, lambda file: columns[file.path], together)
    assert [[file.path for file in merge.files] for merge in found] == [["a", "b", "c"]]


@pytest.mark.parametrize(("sizes", "size"), [([], 0), ([5], 5), ([5, 7], 12)])
def test_the_size_of_a_merge_is_that_of_its_files(sizes, size):
    assert FileGroup("", tuple(small(str(number), each) for number, each in enumerate(sizes))).size == size


files = st.lists(
    st.builds(
        SmallFile, st.uuids().map(str), st.integers(0, 150), st.just("owner"), st.sampled_from(["", "day=1", "day=2"])
    ),
    max_size=20,
)


@given(files, st.integers(1, 200))
def test_a_plan_merges_each_file_at_most_once_and_only_small_ones_of_one_partition(files, target):
    plan = plan_merges(files, target, lambda file: "same", lambda one, other: one)
    merged = [file for merge in plan for file in merge.files]
    assert len({file.path for file in merged}) == len(merged)
    for merge in plan:
        assert len(merge.files) > 1
        assert {file.partition for file in merge.files} == {merge.partition}
        assert all(file.size < target * 0.75 for file in merge.files)
        assert sum(file.size for file in merge.files[:-1]) < target


@given(files, st.integers(1, 200))
def test_a_second_plan_leaves_at_most_one_small_file_of_a_partition_more_to_do(files, target):
    plan = plan_merges(files, target, lambda file: "same", lambda one, other: one)
    gone = {file.path for merge in plan for file in merge.files}
    after = [file for file in files if file.path not in gone]
    after += [SmallFile(f"merged-{n}", merge.size, "owner", merge.partition) for n, merge in enumerate(plan)]
    again = plan_merges(after, target, lambda file: "same", lambda one, other: one)
    assert len(again) <= len({file.partition for file in files})
    assert len(after) <= len(files)
