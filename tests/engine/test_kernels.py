"""Products with CQ matrices: against upstream's dequantised weights; SIMD against plain C, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from needle.model.export import TERNARY_RECORD_BITS, _cq_unpack
from needle.model.quantize import _cq_codebook_np, _cq_hadamard_np

from builder.runtime.host import Instance

GROUP = 128
TERNARY = TERNARY_RECORD_BITS
WIDTHS = (1, 2, 3, 4, TERNARY)
SHAPES = [(2, 1, 1), (3, 128, 2), (7, 129, 3), (10, 300, 5), (5, 640, 31), (4, 256, 33), (3, 130, 70)]


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
        self.rotated = np.pad(x, ((0, 0), (0, padded - columns)))

    def run(self, probe: Instance, *, simd: bool) -> np.ndarray:
        x = probe.place(self.rotated.tobytes())
        probe.call("probe_rotate", x, self.rotated.size // GROUP, int(simd))
        y = probe.reserve(4 * self.tokens * (self.rows - 1))
        matrix = (probe.place(self.blob), probe.place(_levels(self.bits).tobytes()), self.stored_bits)
        probe.call("probe_matmul", *matrix, self.rows, self.columns, x, self.tokens, y, int(simd))
        out = np.frombuffer(probe.read(y, 4 * self.tokens * (self.rows - 1)), "<f4")
        return out.reshape(self.tokens, self.rows - 1)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("rows", "columns", "tokens"), SHAPES)
def test_simd_and_plain_kernels_agree_bit_for_bit_and_with_upstreams_weights(
    probe, bits, rows, columns, tokens
):
    case = Case(bits, rows, columns, tokens)
    plain, simd = case.run(probe, simd=False), case.run(probe, simd=True)
    assert plain.tobytes() == simd.tobytes()
    # Row 0 is left out: the kernel is asked for the rows from 1 on.
    error = np.abs(plain - case.expected[:, 1:])
    assert np.all(error <= 1e-6 * case.scale[:, 1:] + 1e-12)


@pytest.mark.parametrize("simd", [False, True])
def test_the_rotation_is_the_normalised_walsh_hadamard_matrix(probe, simd):
    x = np.random.default_rng(1).standard_normal((3, GROUP)).astype("<f4")
    address = probe.place(x.tobytes())
    probe.call("probe_rotate", address, len(x), int(simd))
    found = np.frombuffer(probe.read(address, x.nbytes), "<f4").reshape(x.shape)
    assert np.abs(found - x.astype(np.float64) @ _cq_hadamard_np(GROUP)).max() < 2e-6
