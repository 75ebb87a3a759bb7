"""Ways to damage a container, and random tensors to fill one with."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from builder.cact.layout import ALIGNMENT_BYTES, HEADER_STRUCTS, RECORD, Kind, padded
from builder.cact.order import Slot
from builder.cact.writer import Blob, cq_blob, half_blob, raw_blob, single_blob

CODEBOOK_BYTES = 28 * 4
WORDS = st.sampled_from([0, 1, 2, 3, 5, 127, 128, 2**16, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with one fault or two: words, records, numbers, the tokenizer, any byte, the end."""
    data = bytearray(whole)
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        draw(st.sampled_from([_word, _record_word, _value, _value, _tokenizer, _byte, _ending]))(draw, data)
    return bytes(data)


def _directory(data: bytearray) -> tuple[int, int]:
    """Where the directory of an undamaged file starts and how many records it has."""
    tag, count = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
    start = HEADER_STRUCTS[tag].size + CODEBOOK_BYTES if tag in HEADER_STRUCTS else 308
    return start, max(1, min(count, (len(data) - start) // RECORD.size))


def _put(data: bytearray, at: int, size: int, value: int) -> None:
    if at + size <= len(data):
        data[at : at + size] = (value % 256**size).to_bytes(size, "little")


def _word(draw: st.DrawFn, data: bytearray) -> None:
    """A header or codebook word."""
    _put(data, 4 * draw(st.integers(0, 77)), 4, draw(WORDS))


def _byte(draw: st.DrawFn, data: bytearray) -> None:
    _put(data, draw(st.integers(0, max(len(data) - 1, 0))), 1, draw(st.integers(0, 255)))


def _record_word(draw: st.DrawFn, data: bytearray) -> None:
    """A field of a record: dtype, ndim, zero, shape words, offset, nbytes, group, bits."""
    start, count = _directory(data)
    at = start + RECORD.size * draw(st.integers(0, count - 1))
    offset, size = draw(
        st.sampled_from(
            [(0, 1), (1, 1), (2, 2), (4, 4), (8, 4), (12, 4), (16, 4), (20, 8), (28, 8), (36, 4), (40, 4)]
        )
    )
    _put(data, at + offset, size, draw(WORDS | st.sampled_from([64, 192, 2**64 - 1, 2**63])))


def _value(draw: st.DrawFn, data: bytearray) -> None:
    """A number that cannot be meant, somewhere in the blobs, at the places where halves and floats stand."""
    start, count = _directory(data)
    first = start + RECORD.size * count
    at = draw(st.integers(first, max(len(data) - 1, first))) // 2 * 2
    _put(data, at, 2, draw(st.sampled_from([0x7C00, 0xFC00, 0x7E00, 0xAAAA])))


def _tokenizer(draw: st.DrawFn, data: bytearray) -> None:
    """A byte of the vocabulary at the end: its header, a piece's score, type, length or text."""
    start, count = _directory(data)
    last = start + RECORD.size * (count - 1)
    offset = int.from_bytes(data[last + 20 : last + 28], "little")
    if offset < len(data):
        _put(data, draw(st.integers(offset, min(len(data) - 1, offset + 4000))), 1, draw(st.integers(0, 255)))


def _ending(draw: st.DrawFn, data: bytearray) -> None:
    """Bytes too few or too many."""
    if draw(st.booleans()):
        data += bytes(draw(st.sampled_from([1, ALIGNMENT_BYTES])))
    else:
        del data[len(data) - draw(st.sampled_from([1, 2, 100])) :]


def random_blob(slot: Slot, rng: np.random.Generator) -> Blob:
    """A tensor of the right kind and shape."""
    if slot.kind is Kind.CQ:
        rows, columns = slot.shape
        codes = rng.integers(0, 16, (rows, padded(columns)), dtype=np.uint8)
        norms = rng.uniform(0.1, 1, (rows, padded(columns) // 128)).astype(np.float16)
        return cq_blob(codes, norms, 4, columns)
    if slot.kind is Kind.FP16:
        return half_blob(rng.standard_normal(slot.shape))
    if slot.kind is Kind.FP32:
        return single_blob(rng.permutation(math.prod(slot.shape)))
    return raw_blob(b"")
