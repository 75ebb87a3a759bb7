"""CQ: encoding and decoding at every width, against upstream's packer and its fake quantiser."""

from __future__ import annotations

from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from needle.model import export as upstream
from needle.model import quantize as upstream_quantize

from builder.cact.codes import dequantise, hadamard, levels, pack_codes, unpack_codes
from builder.cact.layout import CODEBOOKS, CQ_BITS, TERNARY_BITS, padded, storage_bits
from builder.cact.quantise import quantise, rotate


def weights(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * 0.05


# Upstream finds the levels of a width by iterating when they are first asked for: half a second each.
SLOW_WIDTHS = [pytest.param(bits, marks=pytest.mark.slow) for bits in (2, 3)]


@pytest.mark.parametrize("bits", [1, *SLOW_WIDTHS, 4])
@pytest.mark.parametrize("columns", [128, 200, 768, 1536])
def test_codes_and_norms_are_upstreams(bits, columns):
    matrix = weights(64, columns, seed=bits)
    with mock.patch.object(upstream, "WEIGHT_BITS", bits):  # The released packer refuses other widths.
        packed, their_norms = upstream._cq_pack(matrix, bits, 128)
    codes, norms = quantise(matrix, bits)
    ties = int((unpack_codes(packed.tobytes(), 64, padded(columns), bits) != codes).sum())
    ties += int((norms != their_norms).sum())
    # tests/family/ties.py proves each tie; here they only must stay as rare as float rounding makes them.
    assert ties <= 2


@pytest.mark.slow
def test_ternary_weights_are_upstreams():
    matrix = weights(64, 300)
    codes, norms = quantise(matrix, TERNARY_BITS)
    ours = dequantise(codes, norms, levels(TERNARY_BITS, CODEBOOKS), 300)
    theirs = np.asarray(upstream_quantize.cq_quantize(jnp.asarray(matrix), upstream_quantize.TERNARY_BITS))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert set(np.unique(codes)) == {0, 1, 3}


@pytest.mark.slow
def test_the_stored_levels_are_upstreams_codebooks():
    for bits in (1, 2, 3, 4):
        theirs = upstream_quantize._cq_codebook_np(bits, 128)
        assert levels(bits, CODEBOOKS).tobytes() == theirs.tobytes()
    ternary = upstream_quantize._cq_codebook_np(upstream_quantize.TERNARY_BITS, 128)
    assert levels(TERNARY_BITS, CODEBOOKS)[[3, 0, 1]].tobytes() == ternary.tobytes()


def test_the_hadamard_matrix_is_upstreams():
    assert hadamard().tobytes() == upstream_quantize._cq_hadamard_np(128).tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12, 13, 16, 24, 29])
def test_the_fixed_order_is_a_rotation(count):
    groups = np.random.default_rng(count).standard_normal((5, count, 128)).astype(np.float32)
    exact = groups.astype(np.float64) @ hadamard().astype(np.float64)
    np.testing.assert_allclose(rotate(groups), exact, rtol=0, atol=5e-6)


def test_a_groups_codes_do_not_depend_on_the_rows_around_it():
    matrix = weights(1300, 256)
    codes, norms = quantise(matrix, 4)
    for row in (0, 511, 512, 1299):
        alone_codes, alone_norms = quantise(matrix[row : row + 1], 4)
        assert np.array_equal(alone_codes[0], codes[row])
        assert np.array_equal(alone_norms[0], norms[row])


def test_memory_order_does_not_matter():
    matrix = weights(96, 200)
    for one, other in zip(quantise(matrix, 4), quantise(np.asfortranarray(matrix), 4), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("bits", CQ_BITS)
def test_rows_of_zeros_stay_zeros(bits):
    codes, norms = quantise(np.zeros((3, 128), np.float32), bits)
    assert not norms.any()
    if bits == 1:
        assert not codes.any()  # Zero is in the middle of two levels, and the lower one wins.
    assert not dequantise(codes, norms, levels(bits, CODEBOOKS), 128).any()


def test_tiny_and_huge_norms_go_to_the_ends_of_fp16():
    _, norms = quantise(np.full((1, 128), 1e-8, np.float32), 4)
    assert 0 < norms[0, 0] < 2**-14
    _, norms = quantise(np.full((1, 128), 1e4, np.float32), 4)
    assert np.isinf(norms[0, 0])


@pytest.mark.parametrize(("bits", "error"), [(1, 0.61), (2, 0.35), (3, 0.19), (4, 0.098), (5, 0.45)])
def test_the_error_shrinks_with_the_width(bits, error):
    # Relative rms of Lloyd-Max quantisers of a Gaussian (Max, 1960): 0.603, 0.343, 0.186, 0.0975, 0.436.
    matrix = weights(256, 512)
    codes, norms = quantise(matrix, bits)
    back = dequantise(codes, norms, levels(bits, CODEBOOKS), 512)
    relative = np.sqrt(((back - matrix) ** 2).mean() / (matrix**2).mean())
    assert 0.9 * error < relative < error


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_codes_survive_packing(data):
    bits = data.draw(st.sampled_from(CQ_BITS))
    rows, groups = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    codes = data.draw(
        arrays.arrays(np.uint8, (rows, 128 * groups), elements=st.integers(0, (1 << storage_bits(bits)) - 1))
    )
    packed = pack_codes(codes, bits)
    assert len(packed) == codes.size * storage_bits(bits) // 8
    assert np.array_equal(unpack_codes(packed, rows, 128 * groups, bits), codes)


def test_packing_is_least_significant_bit_first():
    codes = np.zeros((1, 128), np.uint8)
    codes[0, :8] = [1, 2, 3, 4, 5, 6, 7, 0]
    # Three bits each, the first code lowest: 0 111 110 101 100 011 010 001.
    assert pack_codes(codes, 3)[:3] == (0b000_111_110_101_100_011_010_001).to_bytes(3, "little")
    assert pack_codes(codes, 4)[:2] == bytes([0x21, 0x43])
    assert pack_codes(codes & 3, 2)[0] == 0b00_11_10_01


def test_the_unused_ternary_code_is_no_number():
    assert np.isnan(levels(TERNARY_BITS, CODEBOOKS)[2])
