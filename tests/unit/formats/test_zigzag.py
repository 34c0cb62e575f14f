"""Zigzag varints, as Avro and the wire format of a registry have them."""

import pytest

from headrace.formats.zigzag import encode_zigzag


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_small_absolute_values_take_few_bytes(number, encoded):
    assert encode_zigzag(number).hex() == encoded
