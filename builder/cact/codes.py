"""CQ: codes and norms to weights and back.

Owns: packing of codes, the levels of each width, (de)quantisation (docs/formats/cact.md, "CQ").
Does not know: records, files, models. A CQ row is padded to a multiple of 128; each group of 128 weights is a
norm times a unit vector, whose Hadamard rotation is stored as one code per weight.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from builder.cact.layout import CODEBOOK_SLICES, GROUP, TERNARY_BITS, storage_bits

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]

TERNARY_LEVEL = 1.2240064
"""The outer level of the three-level Lloyd-Max quantiser of a unit Gaussian."""


def levels(bits: int, codebooks: Floats) -> Floats:
    """The value of every stored code: (2**storage_bits,) f32. `codebooks` are the file's 28 floats.

    Code 2 of the ternary width is unused; its level is NaN, so that it can never pass for a weight.
    """
    scale = math.sqrt(GROUP)
    if bits == TERNARY_BITS:
        outer = np.float32(TERNARY_LEVEL / scale)
        return np.array([0.0, outer, np.nan, -outer], np.float32)
    if bits == 1:
        outer = np.float32(math.sqrt(2.0 / math.pi) / scale)
        return np.array([-outer, outer], np.float32)
    return codebooks[CODEBOOK_SLICES[bits]].astype(np.float32)


@functools.cache
def hadamard() -> Floats:
    """(128, 128) f32: Sylvester's Walsh-Hadamard matrix over the root of 128; symmetric, its own inverse."""
    matrix = np.array([[1.0]], np.float32)
    while len(matrix) < GROUP:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: Floats = (matrix / np.sqrt(GROUP)).astype(np.float32)
    scaled.flags.writeable = False
    return scaled


def unpack_codes(packed: bytes | memoryview, rows: int, columns: int, bits: int) -> Codes:
    """(rows, columns) u8 from LSB-first bit streams, one per row; `columns` is a multiple of 128."""
    width = storage_bits(bits)
    words = np.frombuffer(packed, np.uint8).reshape(rows, columns // 8, width)
    word = np.zeros((rows, columns // 8), np.uint32)
    for byte in range(width):
        word |= words[..., byte].astype(np.uint32) << np.uint32(8 * byte)
    codes = np.empty((rows, columns // 8, 8), np.uint8)
    for position in range(8):
        codes[..., position] = (word >> np.uint32(position * width)) & np.uint32((1 << width) - 1)
    return codes.reshape(rows, columns)


def dequantise(codes: Codes, norms: Halves, level_values: Floats, columns: int) -> Floats:
    """(rows, columns) f32 weights from (rows, padded) codes and (rows, padded / 128) norms.

    The rotation is the matrix product that upstream's `read_export` calls, so the result equals upstream's
    bit for bit on the same machine; between machines the last bit follows the BLAS, as upstream's does.
    """
    rows, width = codes.shape
    rotated = level_values[codes].reshape(rows, width // GROUP, GROUP)
    rotated *= norms.reshape(rows, width // GROUP, 1).astype(np.float32)
    weights: Floats = (rotated @ hadamard()).reshape(rows, width)
    return np.ascontiguousarray(weights[:, :columns])


def pack_codes(codes: Codes, bits: int) -> bytes:
    """The inverse of `unpack_codes`: (rows, columns) u8 to LSB-first bit streams, one per row."""
    width = storage_bits(bits)
    rows, columns = codes.shape
    eight = codes.reshape(rows, columns // 8, 8).astype(np.uint32)
    word = np.zeros((rows, columns // 8), np.uint32)
    for position in range(8):
        word |= eight[..., position] << np.uint32(position * width)
    words = np.empty((rows, columns // 8, width), np.uint8)
    for byte in range(width):
        words[..., byte] = (word >> np.uint32(8 * byte)) & np.uint32(0xFF)
    return words.tobytes()
