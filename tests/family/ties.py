"""What may differ between two exports of the same weights, and the proof that it is a tie.

Upstream's rotation runs in the BLAS of the machine. A code may then fall on either side of the middle between
two levels, and a norm on either side of the middle between two fp16 numbers, if the exact value lies within
float rounding of that middle. Anything else is a mistake.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from builder.cact.codes import hadamard, levels
from builder.cact.layout import CODEBOOKS, GROUP, Kind
from builder.cact.reader import Container

TOLERANCE = 2e-6
"""Relative to the group's norm; 128 multiply-adds in f32 may go wrong by 128 * 2**-24 = 8e-6 of it."""


def prove_equal_up_to_ties(ours: Container, theirs: Container, weights: Callable[[str], np.ndarray]) -> int:
    """How many codes and norms differ; each is proved a tie of the exact (f64) value, else AssertionError.

    `weights(name)` are the (rows, columns) f32 weights behind a CQ tensor.
    """
    assert ours.header == theirs.header
    assert ours.codebooks.tobytes() == theirs.codebooks.tobytes()
    assert ours.records == theirs.records
    count = 0
    for record in ours.records:
        if ours.raw(record.name) == theirs.raw(record.name):
            continue
        assert record.kind is Kind.CQ, f"{record.name} differs"
        count += _prove_tensor(ours, theirs, record.name, weights(record.name))
    return count


def _prove_tensor(ours: Container, theirs: Container, name: str, weights: np.ndarray) -> int:
    record = ours.record(name)
    padding = ((0, 0), (0, record.code_columns - weights.shape[1]))
    groups = np.pad(weights.astype(np.float64), padding).reshape(record.rows, -1, GROUP)
    rotated = groups @ hadamard().astype(np.float64)
    exact_norms = np.sqrt((rotated**2).sum(-1))
    values = levels(record.bits, CODEBOOKS).astype(np.float64)

    codes, other_codes = ours.codes(name), theirs.codes(name)
    rows, columns = np.nonzero(codes != other_codes)
    for row, column in zip(rows, columns, strict=True):
        low, high = sorted((int(codes[row, column]), int(other_codes[row, column])))
        assert high == low + 1, f"{name}[{row},{column}]: codes {low} and {high} are no neighbours"
        group = column // GROUP
        unit = rotated[row, group, column % GROUP] / exact_norms[row, group]
        middle = (values[low] + values[high]) / 2
        assert abs(unit - middle) < TOLERANCE, f"{name}[{row},{column}]: {unit} is no tie at {middle}"

    norms, other_norms = ours.norms(name), theirs.norms(name)
    for row, group in np.argwhere(norms != other_norms):
        middle = (float(norms[row, group]) + float(other_norms[row, group])) / 2
        exact = exact_norms[row, group]
        apart = abs(int(norms[row, group].view(np.uint16)) - int(other_norms[row, group].view(np.uint16)))
        assert apart == 1, f"{name} norm [{row},{group}]: no neighbours"
        assert abs(exact - middle) < TOLERANCE * exact, f"{name} norm [{row},{group}]: {exact} is no tie"
    return len(rows) + int((norms != other_norms).sum())
