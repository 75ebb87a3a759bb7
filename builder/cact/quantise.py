"""CQ encoding: weights to codes and norms, the same bits on every machine.

Owns: the rotation in a fixed order, norms, nearest levels. Does not know: records, files, models.

Upstream rotates with a BLAS matrix product, so its own codes move where a value lies within float rounding of
the middle between two levels. Here nothing is left to a library: every output of the rotation is a chain of
fused multiply-adds in f32,

    acc = f32(f64(acc) + f64(weight[k]) * f64(hadamard[k, j]))        k in ascending order

(the product is exact in f64; a hardware FMA differs once in about 2**29 steps, when f64 rounds onto the
middle between two f32), or the sum of several such chains, as `rotate` and `_two_chains` say. That is the
order of OpenBLAS's AVX2 kernels on one thread, taken because upstream's files are then met bit for bit; fixed
here, it gives the same bits on every machine, with any BLAS and any number of threads.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from builder.cact.codes import Codes, Floats, Halves, hadamard, levels
from builder.cact.layout import CODEBOOKS, GROUP, TERNARY_BITS, padded

Doubles = npt.NDArray[np.float64]

CHUNK_ROWS = 512
"""Rows rotated at a time: 128 * 512 f64 stay in a second-level cache."""
NORM_MIN = np.float32(1e-12)
"""A group below this norm is divided by this instead, as upstream does."""
_TRIT_CRUMBS = np.array([3, 0, 1], np.uint8)
"""Stored code of each ternary level in ascending order."""


def quantise(weights: Floats, bits: int) -> tuple[Codes, Halves]:
    """(rows, columns) f32 to (rows, padded) u8 codes and (rows, padded / 128) f16 norms, at `bits` 1 to 5.

    A norm above 65504 becomes infinite, which no reader accepts: `write_container` refuses it by name.
    """
    rows, columns = weights.shape
    width = padded(columns)
    if width != columns:
        weights = np.pad(weights, ((0, 0), (0, width - columns)))
    rotated = rotate(np.ascontiguousarray(weights, np.float32).reshape(rows, width // GROUP, GROUP))
    norms: Floats = np.sqrt(_sum_of_squares(rotated))
    unit = np.divide(rotated, np.maximum(norms, NORM_MIN)[..., None], dtype=np.float32)
    ordered = np.sort(levels(bits, CODEBOOKS))[: 3 if bits == TERNARY_BITS else None]
    codes = _nearest(unit.reshape(rows, width), ordered)
    if bits == TERNARY_BITS:
        codes = _TRIT_CRUMBS[codes]
    with np.errstate(over="ignore"):
        return codes, norms.astype(np.float16)


def group_norms(weights: Floats) -> Doubles:
    """(rows, columns) f32 to (rows, padded / 128) f64: the norms before f32 and f16 round them."""
    starts = range(0, weights.shape[1], GROUP)
    return np.sqrt(np.add.reduceat(np.square(weights, dtype=np.float64), starts, axis=1))


def rotate(groups: Floats) -> Floats:
    """(rows, groups, 128) f32 times the Hadamard matrix, in the order that the module describes.

    Rows are independent, so the threads that share them do not show in the result.
    """
    rotated = np.empty(groups.shape, np.float32)

    def rotate_rows(start: int) -> None:
        some = slice(start, start + CHUNK_ROWS)
        rotated[some] = _rotate_rows(groups[some])

    starts = range(0, len(groups), CHUNK_ROWS)
    if len(starts) == 1:
        rotate_rows(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(rotate_rows, starts))
    return rotated


def _rotate_rows(groups: Floats) -> Floats:
    count = groups.shape[1]
    if count == 1:
        eights = [range(start, start + 8) for start in range(0, GROUP, 8)]
        return _sum_of_chains(groups[:, 0], eights)[:, None]
    rotated = np.empty(groups.shape, np.float32)
    two = _two_chains(count)
    one_chain, two_chains = [range(GROUP)], [range(0, GROUP, 2), range(1, GROUP, 2)]
    for chains, wanted in ((one_chain, ~two), (two_chains, two)):
        for position in np.flatnonzero(wanted.any(axis=1)):
            values = _sum_of_chains(groups[:, position], chains)
            outputs = wanted[position]
            rotated[:, position, outputs] = values[:, outputs]
    return rotated


def _two_chains(count: int) -> npt.NDArray[np.bool_]:
    """(count, 128): which outputs of a row of `count` groups are an even plus an odd chain.

    The kernel takes groups by twelve, then by four, then the rest.
    """
    two = np.zeros((count, GROUP), np.bool_)
    twelves = count - count % 12
    for start in range(0, twelves, 12):
        two[start : start + 6, :8] = two[start : start + 6, -8:] = True
    two[twelves : count - count % 4] = True
    return two


def _sum_of_chains(groups: Floats, chains: list[range]) -> Floats:
    """(n, 128) f32 to (n, 128) f32: per output the sum, left to right, of one chain per range of k."""
    signs = np.sign(hadamard()).astype(np.float64)
    products = np.ascontiguousarray(groups.T, np.float64) * np.float64(hadamard()[0, 0])
    total = _chain(products, signs, chains[0])
    for chain in chains[1:]:
        total += _chain(products, signs, chain)
    return total.T


def _chain(products: Doubles, signs: Doubles, chain: range) -> Floats:
    """(128, n) f32: the running f32 sum of `signs[k] * products[k]`; `products` is (128, n)."""
    total = np.zeros(products.shape, np.float32)
    exact = np.empty(products.shape, np.float64)
    for k in chain:
        np.multiply(signs[k][:, None], products[k], out=exact)
        exact += total
        total[...] = exact
    return total


def _sum_of_squares(rotated: Floats) -> Floats:
    """(..., 128) f32 to (...) f32: eight interleaved running sums, then pairs of them (numpy's order)."""
    squares = rotated * rotated
    eight = squares[..., :8].copy()
    for start in range(8, GROUP, 8):
        eight += squares[..., start : start + 8]
    four = eight[..., 0::2] + eight[..., 1::2]
    two = four[..., 0::2] + four[..., 1::2]
    total: Floats = two[..., 0] + two[..., 1]
    return total


def _nearest(values: Floats, ordered: Floats) -> Codes:
    """Index of the nearest of the ascending levels, the lower one on a tie."""
    above = np.clip(np.searchsorted(ordered, values), 1, len(ordered) - 1)
    to_lower = np.abs(values - ordered[above - 1])
    to_upper = np.abs(values - ordered[above])
    return np.where(to_lower <= to_upper, above - 1, above).astype(np.uint8)
