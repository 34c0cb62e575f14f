"""Numbers in what people read: one of a thing is not called many, and offsets are not called records."""

import importlib

import pytest

from headrace import testing
from headrace.errors import ConfigError
from headrace.runtime.stream import StreamBatch
from headrace.stores import Memory
from headrace.tools.offsets.editor import OffsetEditor
from headrace.tools.offsets.targets import OffsetChange
from headrace.types import Batch, Range, TopicPartition

made = importlib.import_module("headrace.testing.rows")
A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.mark.parametrize(
    ("outside", "said"),
    [
        ([A], "lies outside$"),
        ([A, B], "outside; the same for 1 more partition$"),
        ([A, B, C], "for 2 more partitions$"),
    ],
)
def test_offsets_outside_the_log_are_counted(outside, said):
    with OffsetEditor("p", Memory(), None, {}, changes=True) as editor, pytest.raises(ConfigError, match=said):
        editor.execute(editor.state.progress, [OffsetChange(at, 5, 90, 0, 50) for at in outside], "seek", "")


def test_a_batch_in_flight_counts_offsets():
    assert repr(StreamBatch(Batch(3, (Range(A, 0, 1),)), None, None, replay=False)) == "batch 3: 1 offset"


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("user STRING", "a", r"row 0: expected a tuple or a dict, got 'a'"),
        ("user STRING", 5, r"row 0: expected a tuple or a dict, got 5"),
        ("user STRING, page STRING", ("ann",), r"row 0 has 1 value; expected 2: user, page"),
        ("user STRING", {"user": "ann", "_kafka": None}, r"row 0: expected a dict in _kafka, got None"),
        ("user STRNG", ("ann",), r"STRNG is not a type"),
    ],
)
def test_rows_of_a_test_that_cannot_be_are_refused_with_an_example(schema, value, said):
    with pytest.raises(ConfigError, match=said) as refused:
        if "STRNG" in schema:
            testing.rows(None, schema, [value])
        else:
            columns = [column.split()[0] for column in schema.split(", ")]
            made._row(0, value, columns, [], "test")
    assert refused.value.hint
