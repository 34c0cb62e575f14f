"""The number of a checkpoint's batch 0, stored in the checkpoint."""

import json

import pytest

from headrace.engine.structured.batch_numbers import number_of_batch_zero
from headrace.errors import ConfigError


class Checkpoint:
    """The files of a checkpoint, in memory."""

    def __init__(self, **files):
        self.files = {name.replace("_", "."): text for name, text in files.items()}

    def read_file(self, name):
        return self.files.get(name)

    def write_file(self, name, text):
        self.files[name] = text


@pytest.mark.parametrize(
    ("batch_id", "newest", "zero"),
    [
        (0, 0, 1),  # a new sink
        (0, 12, 13),  # a new checkpoint
        (40, 0, -39),  # the function was added to a query that has run before
        (40, 12, -27),
    ],
)
def test_the_next_batch_is_numbered_above_the_newest_of_the_sink(batch_id, newest, zero):
    checkpoint = Checkpoint()
    assert number_of_batch_zero(checkpoint, "clicks", batch_id, lambda: newest) == zero
    assert zero + batch_id == newest + 1
    assert json.loads(checkpoint.files["clicks.json"]) == {"format": 1, "batch_zero": zero}


def test_a_repeated_batch_has_the_number_that_it_had():
    checkpoint = Checkpoint()
    numbers = [number_of_batch_zero(checkpoint, "clicks", 5, lambda newest=newest: newest) + 5 for newest in (12, 13)]
    assert numbers == [13, 13]


def test_the_first_format_is_read_and_a_newer_one_refused():
    assert number_of_batch_zero(Checkpoint(clicks_json='{"format": 1, "batch_zero": 7}'), "clicks", 3, int) == 7
    with pytest.raises(ConfigError, match=r"clicks\.json of the checkpoint is stored in format 2"):
        number_of_batch_zero(Checkpoint(clicks_json='{"format": 2, "batch_zero": 7}'), "clicks", 3, int)
