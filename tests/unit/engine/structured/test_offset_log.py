"""Entries of an offset log."""

import pytest

from headrace.engine.structured.offset_log import content_hash


@pytest.mark.parametrize(
    ("entry", "other"),
    [
        (['{"clicks": {"0": 1, "1": 2}}', None], ['{"clicks":{"1":2,"0":1}}', None]),  # as another version writes it
        (["17"], [" 17"]),
        (["page 4"], ["page 4"]),
    ],
)
def test_equal_offsets_have_one_hash(entry, other):
    assert content_hash(entry) == content_hash(other)


@pytest.mark.parametrize(
    ("entry", "other"),
    [
        (['{"clicks": {"0": 1}}'], ['{"clicks": {"0": 2}}']),
        (["1", None], [None, "1"]),
        (["1"], ["1", None]),
        (["page 4"], ["page 5"]),
    ],
)
def test_other_offsets_have_another_hash(entry, other):
    assert content_hash(entry) != content_hash(other)
