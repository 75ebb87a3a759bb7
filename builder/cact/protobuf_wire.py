"""The protobuf wire format, as much of it as a SentencePiece model needs.

Owns: fields of one message in, fields of one message out. Does not know: what any field means.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_INT64 = 1 << 63


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in file order: varints as signed 64-bit integers, everything else as its bytes.

    Raises `ValueError` for bytes that are not a message.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, value - 2 * _INT64 if value >= _INT64 else value
            continue
        if wire == LENGTH:
            size, at = _varint(message, at)
        elif wire in _FIXED_BYTES:
            size = _FIXED_BYTES[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if size > len(message) - at:
            raise ValueError(f"field {number} cut off at byte {at}")
        yield number, message[at : at + size]
        at += size


def varint_field(number: int, value: int) -> bytes:
    """An integer, boolean or enum field."""
    return _packed(number << 3 | VARINT) + _packed(value % (2 * _INT64))


def bytes_field(number: int, value: bytes) -> bytes:
    """A string, bytes or message field."""
    return _packed(number << 3 | LENGTH) + _packed(len(value)) + value


def float_field(number: int, value: float) -> bytes:
    """A float field (f32)."""
    return _packed(number << 3 | FIXED32) + struct.pack("<f", value)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for position in range(10):
        if at + position >= len(message):
            break
        byte = message[at + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value & (2 * _INT64 - 1), at + position + 1
    raise ValueError(f"number without end at byte {at}")


def _packed(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
