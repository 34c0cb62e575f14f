"""Zigzag varints, the integers of Avro and of a registry's wire format."""

from __future__ import annotations


def encode_zigzag(number: int) -> bytes:
    """A signed number of at most 64 bits: small absolute values take few bytes."""
    rest, encoded = (number << 1) ^ (number >> 63), bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])
