"""The number of a checkpoint's batch 0, stored in the checkpoint."""

import json

import pytest

from headrace.connectors.shared.file_store import file_store_at
from headrace.errors import ConfigError, OffsetConflict
from headrace.runtime.batch_numbers import number_of_batch_zero


@pytest.fixture
def checkpoint(tmp_path):
    return file_store_at(None, f"file:{tmp_path}")


def stored(number_format, zero):
    return json.dumps({"format": number_format, "batch_zero": zero}).encode()


@pytest.mark.parametrize(
    ("batch_id", "newest", "zero"),
    [
        (0, 0, 1),  # a new sink
        (0, 12, 13),  # a new checkpoint
        (40, 0, -39),  # the function was added to a query that has run before
        (40, 12, -27),
    ],
)
def test_the_next_batch_is_numbered_above_the_newest_of_the_sink(batch_id, newest, zero, checkpoint):
    assert number_of_batch_zero(checkpoint, "clicks", batch_id, lambda: newest) == zero
    assert zero + batch_id == newest + 1
    assert json.loads(checkpoint.read("headrace/clicks.json")) == {"format": 1, "batch_zero": zero}


def test_a_repeated_batch_has_the_number_that_it_had(checkpoint):
    numbers = [number_of_batch_zero(checkpoint, "clicks", 5, lambda newest=newest: newest) + 5 for newest in (12, 13)]
    assert numbers == [13, 13]


def test_the_first_format_is_read(checkpoint):
    checkpoint.put("headrace/clicks.json", stored(1, 7))
    assert number_of_batch_zero(checkpoint, "clicks", 3, int) == 7


def test_a_newer_format_is_refused(checkpoint):
    checkpoint.put("headrace/clicks.json", stored(2, 7))
    with pytest.raises(ConfigError, match=r"clicks\.json of the checkpoint is stored in format 2"):
        number_of_batch_zero(checkpoint, "clicks", 3, int)


def test_of_two_processes_that_begin_at_once_one_is_refused(checkpoint):
    def newest():
        checkpoint.put("headrace/clicks.json", stored(1, 7))  # meanwhile
        return 12

    with pytest.raises(OffsetConflict, match="another process runs this query"):
        number_of_batch_zero(checkpoint, "clicks", 3, newest)
