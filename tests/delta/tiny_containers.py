"""Tiny containers of any layout, written byte by byte: not by the code under test, not only sensible ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from builder.cact.layout import CODEBOOK_SLICES, CODEBOOKS

Floats = npt.NDArray[np.float64]
TAGS = {0x05E12A82: 20, 0x05E12A83: 120, 0x05E12A84: 196}
STORED_BITS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 2}


@dataclass(frozen=True)
class Blob:
    """One tensor: record fields and content. `bits` is 0 for all but CQ."""

    dtype: int
    shape: tuple[int, ...]
    bits: int
    data: bytes


def cq(rows: int, columns: int, bits: int, seed: int) -> Blob:
    random = np.random.default_rng(seed)
    groups = -(-columns // 128)
    codes = random.integers(0, 256, rows * groups * 16 * STORED_BITS[bits], dtype=np.uint8).tobytes()
    norms = random.uniform(0.01, 2, rows * groups).astype("<f2").tobytes()
    return Blob(3, (rows, columns), bits, codes + norms)


def floats(dtype: int, count: int, seed: int) -> Blob:
    values = np.random.default_rng(seed).standard_normal(count)
    return Blob(dtype, (count,), 0, values.astype("<f2" if dtype == 1 else "<f4").tobytes())


def raw(data: bytes) -> Blob:
    return Blob(4, (), 0, data)


def levels_of(bits: int) -> Floats:
    """The levels of a width, by code; the fourth crumb of ternary is where no weight comes."""
    if bits in CODEBOOK_SLICES:
        return np.array(CODEBOOKS[CODEBOOK_SLICES[bits]])
    scale = 1 / np.sqrt(128)
    one, third = np.sqrt(2 / np.pi) * scale, 1.2240064 * scale
    return np.array([-one, one]) if bits == 1 else np.array([0, third, 9, -third])


def fine_tuned(bits: int, rows: int, q: Floats, strength: float, seed: int) -> tuple[Blob, Blob]:
    """A CQ tensor and the same after a low-rank update P q; q is (rank, columns), both in the rotated domain.

    `strength` is the update's spread against that of the weights.
    """
    random = np.random.default_rng(seed)
    weights = random.standard_normal((rows, q.shape[1])) * random.uniform(0.1, 0.3, (rows, 1))
    update = random.standard_normal((rows, len(q))) @ q
    update *= strength * np.abs(weights).mean(1, keepdims=True) / np.sqrt(np.square(update).mean())
    return quantised(weights, bits), quantised(weights + update, bits)


def quantised(weights: Floats, bits: int) -> Blob:
    """The CQ blob of weights that are rotated already."""
    rows, columns = weights.shape
    groups = weights.reshape(rows, columns // 128, 128)
    norms = np.linalg.norm(groups, axis=2)
    distance = np.abs(groups[..., None] / norms[..., None, None] - levels_of(bits))
    codes = distance.argmin(-1).reshape(rows, columns)
    stored = STORED_BITS[bits]
    planes = (codes[..., None] >> np.arange(stored)) & 1
    packed = np.packbits(planes.reshape(rows, -1).astype(np.uint8), axis=1, bitorder="little")
    return Blob(3, (rows, columns), bits, packed.tobytes() + norms.astype("<f2").tobytes())


def container(tag: int, blobs: list[Blob], header_fill: int = 1) -> bytes:
    """Header, codebooks, directory and blobs at multiples of 64, as docs/formats/cact.md draws them."""
    head = struct.pack("<III", tag, len(blobs), 28)
    head += bytes([header_fill]) * (TAGS[tag] - len(head)) + np.array(CODEBOOKS, dtype="<f4").tobytes()
    offset = len(head) + 44 * len(blobs)
    directory, body = b"", b""
    for blob in blobs:
        gap = -offset % 64
        body += bytes(gap) + blob.data
        shape = (*blob.shape, 0, 0, 0, 0)[:4]
        place = (offset + gap, len(blob.data), 128 if blob.bits else 0, blob.bits)
        directory += struct.pack("<BBH4IQQII", blob.dtype, len(blob.shape), 0, *shape, *place)
        offset += gap + len(blob.data)
    return head + directory + body


def nudged(blob: Blob, seed: int, share: float) -> Blob:
    """The same tensor with some of its bytes moved a little, as a fine-tune does."""
    random = np.random.default_rng(seed)
    data = np.frombuffer(blob.data, np.uint8).copy()
    where = random.random(data.size) < share
    data[where] += random.integers(1, 3, int(where.sum()), dtype=np.uint8)
    return replace(blob, data=data.tobytes())


_seeds = st.integers(0, 2**32 - 1)
_cq_blobs = st.builds(cq, st.integers(1, 5), st.sampled_from([1, 128, 200, 384]), st.integers(1, 5), _seeds)
_blobs = st.one_of(
    _cq_blobs,
    st.builds(floats, st.sampled_from([1, 2]), st.integers(1, 40), _seeds),
    st.builds(raw, st.binary()),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A base and a target: fine-tuned, cut, extended, of other widths, or of another world altogether."""
    tag = draw(st.sampled_from(list(TAGS)))
    blobs = draw(st.lists(_blobs, min_size=1, max_size=7))
    target = list(blobs)
    for index in draw(st.lists(st.integers(0, len(blobs) - 1), max_size=7)):
        change = draw(st.sampled_from(["nudge", "drop", "replace", "insert"]))
        at = min(index, len(target))
        if change == "insert":
            target.insert(at, draw(_blobs))
        elif at < len(target) and change == "nudge":
            target[at] = nudged(target[at], draw(_seeds), draw(st.sampled_from([0.01, 0.3, 1.0])))
        elif at < len(target) and change == "replace":
            target[at] = draw(_blobs)
        elif at < len(target):
            del target[at]
    target_tag = draw(st.sampled_from([tag, tag, tag, *TAGS]))
    return container(tag, blobs), container(target_tag, target, draw(st.integers(0, 2)))
