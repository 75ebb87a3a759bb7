"""The kernels: SIMD against plain C, bit for bit; products against upstream's dequantised weights."""

from __future__ import annotations

import numpy as np
import pytest
from needle.model.export import TERNARY_RECORD_BITS, _cq_unpack
from needle.model.quantize import _cq_codebook_np, _cq_hadamard_np

from builder.runtime.host import Instance

pytestmark = pytest.mark.slow

GROUP = 128
BITS_16, BITS_7 = ROUNDINGS = 0, 1
PLAIN_C = 0
WAYS = AS_THE_ENGINE_DOES, SUMS_OF_16_BITS, SUMS_OF_32_BITS = 1, 2, 3
"""SIMD, as probe.c numbers it; the latter two are what the engine takes on one machine or another."""
ERROR_MAX = {BITS_16: 2e-5, BITS_7: 6e-3}
"""Relative to the product of the vectors' lengths: a few times the largest seen."""
TERNARY = TERNARY_RECORD_BITS
WIDTHS = (1, 2, 3, 4, TERNARY)
SHAPES = [(2, 1, 1), (3, 128, 2), (7, 129, 3), (10, 300, 5), (5, 640, 31), (14, 256, 33), (3, 130, 64)]


def _levels(bits: int) -> np.ndarray:
    """The value of each stored code, as docs/formats/cact.md gives it, padded to 16."""
    if bits == TERNARY:
        outer = _cq_codebook_np(1.58, GROUP)[2]
        values = [0, outer, 0, -outer]
    else:
        values = _cq_codebook_np(bits, GROUP)
    return np.pad(np.asarray(values, "<f4"), (0, 16 - len(values)))


class Case:
    """A random matrix in its file form, random activations, and what comes out by upstream's weights."""

    def __init__(self, bits: int, rows: int, columns: int, tokens: int) -> None:
        rng = np.random.default_rng((bits, rows, columns, tokens))
        self.bits, self.rows, self.columns, self.tokens = bits, rows, columns, tokens
        padded = -(-columns // GROUP) * GROUP
        self.stored_bits = 2 if bits == TERNARY else bits
        codes = rng.integers(0, 256, (rows, padded * self.stored_bits // 8), dtype=np.uint8)
        if bits == TERNARY:
            codes &= ~((codes & 0xAA) & ~((codes & 0x55) << 1)).astype(np.uint8)  # no crumb of value 2
        norms = rng.uniform(-1, 1, (rows, padded // GROUP)).astype("<f2")
        norms[0, 0], norms[-1, -1] = 0, 3e-6  # nothing, and a subnormal
        self.blob = codes.tobytes() + norms.tobytes()
        weights = _cq_unpack(codes, norms, rows, columns, bits, GROUP)
        x = rng.standard_normal((tokens, columns)).astype("<f4")
        self.expected = x.astype(np.float64) @ weights.astype(np.float64).T
        # Rounding is relative to the lengths of the vectors in rotated space, before padding is cut off.
        lengths = np.sqrt(np.square(norms.astype(np.float64)).sum(1))
        self.scale = np.linalg.norm(x, axis=1)[:, None] * lengths[None, :]
        self.x, self.padded, self.levels = x, padded, _levels(bits)

    def run(self, probe: Instance, rounding: int, way: int) -> np.ndarray:
        x = probe.place(self.x.tobytes())
        y = probe.reserve(4 * self.tokens * (self.rows - 1))
        room = probe.reserve(2 * self.tokens * self.padded + 8 * self.tokens * self.padded // GROUP)
        matrix = (probe.place(self.blob), probe.place(self.levels.tobytes()), self.stored_bits)
        shape = (self.rows, self.columns)
        probe.call("probe_product", *matrix, *shape, x, self.tokens, room, y, rounding, way)
        out = np.frombuffer(probe.read(y, 4 * self.tokens * (self.rows - 1)), "<f4")
        return out.reshape(self.tokens, self.rows - 1)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("rows", "columns", "tokens"), SHAPES)
def test_simd_and_plain_products_agree_bit_for_bit_and_with_upstreams_weights(
    any_probe, rounding, bits, rows, columns, tokens
):
    case = Case(bits, rows, columns, tokens)
    plain = case.run(any_probe, rounding, PLAIN_C)
    for way in WAYS:
        assert case.run(any_probe, rounding, way).tobytes() == plain.tobytes()
    # Row 0 is left out: the kernel is asked for the rows from 1 on.
    error = np.abs(plain - case.expected[:, 1:])
    assert np.all(error <= ERROR_MAX[rounding] * case.scale[:, 1:] + 1e-12)


@pytest.mark.parametrize("size", [3e-39, 1e-20, 1.0, 1e20])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_products_hold_where_all_levels_and_activations_are_extreme(any_probe, rounding, size):
    """The largest sums that 32 bits must take: after the rotation every number is the largest one."""
    case = Case(4, 5, 256, 3)
    case.blob = b"\xff" * (5 * 128) + np.ones(10, "<f2").tobytes()
    case.x = np.zeros((3, 256), "<f4")
    case.x[:, [0, 128]] = np.float32(size)
    plain = case.run(any_probe, rounding, PLAIN_C)
    for way in WAYS:
        assert case.run(any_probe, rounding, way).tobytes() == plain.tobytes()
    expected = 2 * size * float(_levels(4)[15]) * np.sqrt(GROUP) if size > 1e-30 else 0.0
    assert plain == pytest.approx(np.full_like(plain, expected), rel=1e-4 if rounding == BITS_16 else 1e-2)


@pytest.mark.parametrize("signs", [1, -1])
@pytest.mark.parametrize("tokens", [1, 4])
def test_four_products_fit_into_16_bits_whatever_the_activations(any_probe, signs, tokens):
    """All weights of the largest number that a level can have, and four neighbours that alone are not 0."""
    case = Case(4, 9, 256, tokens)
    case.levels = np.array([-1] * 15 + [1], "<f4")  # numbers 0 and 127
    case.blob = b"\xff" * (9 * 128) + np.ones(18, "<f2").tobytes()
    rotated = np.zeros((tokens, 2, GROUP), "<f4")
    rotated[:, :, 8:12] = signs
    case.x = (rotated @ _cq_hadamard_np(GROUP)).reshape(tokens, 256).astype("<f4")
    plain = case.run(any_probe, BITS_7, PLAIN_C)
    for way in WAYS:
        assert case.run(any_probe, BITS_7, way).tobytes() == plain.tobytes()
    assert plain == pytest.approx(np.full_like(plain, signs * 8.0), rel=1e-2)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("height", "depth", "width"), [(1, 7, 5), (2, 3, 20), (3, 1, 16), (6, 40, 64), (9, 33, 11)]
)
def test_simd_and_plain_weighted_sums_agree_bit_for_bit_and_with_numpy(probe, height, depth, width, turned):
    rng = np.random.default_rng((height, depth, width))
    weights = rng.standard_normal((height, depth)).astype("<f4")
    rows = rng.standard_normal((depth, width)).astype("<f4")
    stored = np.ascontiguousarray(weights.T if turned else weights)
    found = []
    for simd in (0, 1):
        out = probe.reserve(4 * height * width)
        where = (probe.place(stored.tobytes()), height, depth, int(turned))
        probe.call("probe_weighted_sums", *where, probe.place(rows.tobytes()), width, out, simd)
        found.append(np.frombuffer(probe.read(out, 4 * height * width), "<f4").reshape(height, width))
    assert found[0].tobytes() == found[1].tobytes()
    assert np.abs(found[0] - weights.astype(np.float64) @ rows).max() < 1e-6 * depth


@pytest.mark.parametrize(
    ("height", "pairs", "width"), [(1, 1, 1), (1, 7, 20), (2, 3, 6), (3, 24, 16), (4, 5, 36), (7, 40, 64)]
)
def test_simd_and_plain_whole_sums_are_numpys(probe, height, pairs, width):
    """The extremes included: they add to what stands there, and rows may have gaps."""
    rng = np.random.default_rng((height, pairs, width))
    weights = rng.integers(-32767, 32768, (height, 2 * pairs + 2)).astype("<i2")
    rows = rng.choice(np.array([-127, -5, 0, 1, 127], "i1"), (pairs, width, 2))
    start = rng.integers(-1000, 1000, (height, width)).astype("<i4")
    expected = start + np.einsum("hpk,pwk->hw", weights[:, :-2].reshape(height, pairs, 2).astype(int), rows)
    for simd in (0, 1):
        out = probe.place(start.tobytes())
        where = (probe.place(weights.tobytes()), height, weights.shape[1], probe.place(rows.tobytes()))
        probe.call("probe_whole_sums", *where, pairs, width, out, simd)
        assert probe.read(out, start.nbytes) == expected.astype("<i4").tobytes()


@pytest.mark.parametrize("simd", [0, 1])
@pytest.mark.parametrize("place", range(11))
def test_the_largest_number_and_magnitude_are_found_at_every_place(probe, place, simd):
    x = np.linspace(-3, -2, 11).astype("<f4")
    x[place] = -1
    x[place - 1] = -4
    x[place - 2] = np.nan
    out, address = probe.reserve(8), probe.place(x.tobytes())
    for start, expected in ((-9.0, [-1, 4]), (-0.5, [-0.5, 4])):
        probe.call("probe_largest", address, len(x), start, out, simd)
        assert np.frombuffer(probe.read(out, 8), "<f4").tolist() == expected


@pytest.mark.parametrize("simd", [False, True])
def test_the_rotation_is_the_normalised_walsh_hadamard_matrix(probe, simd):
    x = np.random.default_rng(1).standard_normal((3, GROUP)).astype("<f4")
    address = probe.place(x.tobytes())
    probe.call("probe_rotate", address, len(x), int(simd))
    found = np.frombuffer(probe.read(address, x.nbytes), "<f4").reshape(x.shape)
    assert np.abs(found - x.astype(np.float64) @ _cq_hadamard_np(GROUP)).max() < 2e-6


@pytest.mark.parametrize("rank", [1, 2, 3, 16])
@pytest.mark.parametrize("largest", [40, 3000, 32768])
def test_a_patchs_shift_is_the_whole_product_of_its_factors(probe, rank, largest):
    """docs/formats/patch.md, "Guided codes"; sums wrap, which only hostile patches see."""
    rng = np.random.default_rng((rank, largest))
    row_codes, pre_shift = 2 * GROUP, 6
    p = rng.integers(-largest, largest, rank).astype("<i2")
    q = rng.integers(-largest, largest, (rank, row_codes)).astype("<i2")
    if largest == 32768:
        p[:], q[:, :5] = -largest, -largest
    shift = probe.reserve(2 * row_codes)
    places = probe.place(p.tobytes()), probe.place(q.tobytes())
    probe.call("probe_guide_row", *places, rank, row_codes, pre_shift, shift)
    found = np.frombuffer(probe.read(shift, 2 * row_codes), "<i2")
    sums = (p.astype(np.int64) @ q.astype(np.int64)).astype(np.int32)
    assert (found == np.clip(sums >> pre_shift, -32768, 32767)).all()
