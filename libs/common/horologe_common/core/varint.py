"""Integers of variable length, as Protocol Buffers encode them."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """Return a value of at least 0 in groups of seven bits, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
