"""Protobuf bytes to Arrow rows and back, without Spark."""

import struct

import pyarrow as pa
import pytest

from headrace.formats.protobuf.codec import decoder, encoder
from headrace.formats.protobuf.types import Messages
from support.protobuf_descriptors import described

ORDERS = Messages("shop.Order", described())
LINES = Messages("shop.Line", described())
HEADER = struct.pack(">bI", 0, 7)
LINE = LINES.message_class(sku="a", count=2).SerializeToString()


def decoded(messages, *values, framed=False):
    rows, errors = decoder(messages, framed=framed)(pa.array(values, pa.binary()))
    return rows.to_pylist(), errors.to_pylist()


@pytest.mark.parametrize(
    "row",
    [
        {"id": -5, "name": "naïve ✓"},
        {"large": 2**64 - 1},
        {"kind": "GIFT"},
        {"kind": "9"},  # a number that the enum does not have is kept
        {"line": {"sku": "a", "count": 2**40}},
        {"tags": ["x", ""], "lines": [{"sku": "b", "count": 1}]},
        {"counts": [("c", 3)]},
        {"note": ""},
        {"seen": False},
    ],
)
def test_rows_come_back_equal(row):
    columns = {name: pa.array([value], _type_of(name)) for name, value in row.items()}
    encoded = encoder(ORDERS)(pa.StructArray.from_arrays(list(columns.values()), names=list(columns))).to_pylist()
    assert [answer["error"] for answer in encoded] == [None]
    (found,), errors = decoded(ORDERS, encoded[0]["value"])
    assert errors == [None]
    assert {name: found[name] for name in row} == row


def _type_of(name):
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(ORDERS.row()[name].dataType, timezone="UTC")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"kind": pa.array(["GIFTS"])}, "kind has no value 'GIFTS'"),
        ({"tags": pa.array([["x", None]])}, "tags contains a NULL"),
        ({"counts": pa.array([[("c", None)]], pa.map_(pa.string(), pa.int32()))}, "counts contains a NULL"),
        ({"large": pa.array([-1])}, "-1"),
    ],
)
def test_a_row_that_cannot_be_encoded_has_a_reason(columns, reason):
    (answer,) = encoder(ORDERS)(pa.StructArray.from_arrays(list(columns.values()), names=list(columns))).to_pylist()
    assert answer["value"] is None
    assert answer["error"].startswith("cannot encode the row as shop.Order: ")
    assert reason in answer["error"]


def test_bad_records_have_a_reason_and_leave_the_others_alone():
    rows, errors = decoded(LINES, LINE, b"\xff", None, LINE[:-1])
    assert rows == [{"sku": "a", "count": 2}, None, None, None]
    assert errors == [None, "not a valid shop.Line message", None, "not a valid shop.Line message"]


def test_a_field_of_another_type_is_bad():
    _, errors = decoded(LINES, b"\x08\x01")  # field 1 as a varint instead of a string
    assert errors == ["not a valid shop.Line message: the field sku is of another type"]


@pytest.mark.parametrize(
    ("messages", "value", "error"),
    [
        (LINES, HEADER + b"\0" + LINE, None),
        (LINES, HEADER + b"\2\0" + LINE, None),  # the first message, as an explicit path
        (ORDERS, HEADER + b"\2\2", None),
        (LINES, HEADER + b"\2\2" + LINE, "it is another message of its schema"),
        (LINES, LINE, "not in the wire format of a schema registry"),
        (LINES, b"\0\0", "not in the wire format of a schema registry"),
        (LINES, b"\1" + HEADER[1:] + b"\0" + LINE, "not in the wire format of a schema registry"),
    ],
)
def test_the_wire_format_of_a_registry_names_the_message(messages, value, error):
    _, errors = decoded(messages, value, framed=True)
    assert errors == [error and f"not a valid {messages.name} message: {error}"]
