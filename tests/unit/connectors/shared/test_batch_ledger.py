"""What a sink that remembers only its newest batch does with the next."""

import pytest

from headrace.connectors.shared.batch_ledger import LastBatch, abandoned_folders
from headrace.errors import OffsetConflict
from headrace.types import Batch, Range, TopicPartition

FIRST = Batch(4, (Range(TopicPartition("clicks", 0), 0, 5),))
OTHER = Batch(4, (Range(TopicPartition("clicks", 0), 0, 6),))


@pytest.mark.parametrize(
    ("newest", "batch", "held"),
    [
        (LastBatch(), FIRST, False),
        (LastBatch(3, OTHER.fingerprint), FIRST, False),
        (LastBatch(4, FIRST.fingerprint), FIRST, True),
        (LastBatch(4, FIRST.fingerprint[:6]), FIRST, True),
        (LastBatch(4, OTHER.fingerprint), FIRST, None),
        (LastBatch(4), FIRST, None),
        (LastBatch(5, FIRST.fingerprint), FIRST, None),
    ],
    ids=[
        "none",
        "a newer one",
        "the same",
        "a part of the fingerprint",
        "other ranges",
        "no fingerprint",
        "an older one",
    ],
)
def test_a_batch_is_stored_held_or_refused(newest, batch, held):
    if held is None:
        with pytest.raises(OffsetConflict, match=r"batch 4 .* comes too late: the table holds batch"):
            newest.holds(batch, "the table")
    else:
        assert newest.holds(batch, "the table") is held


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [(3, 6, ["4-a", "5-b", "6-c"]), (0, 3, ["3-z"]), (6, 6, []), (6, 3, []), (3, 5, ["4-a", "5-b"])],
)
def test_folders_between_two_committed_batches_are_named(before, after, found):
    folders = ["3-z", "4-a", "5-b", "6-c", "7-kept", "_delta_log", "day=5"]
    assert abandoned_folders(folders, before, after, keep="7-kept") == found


def test_the_folder_of_the_batch_that_is_committed_is_kept():
    assert abandoned_folders(["4-a", "5-b"], 3, 5, keep="5-b") == ["4-a"]
