"""Comparing tensors for exact equality, with a message that says how far apart they are.

Owns: `assert_tensors_equivalent`. Does not know: where the tensors come from.
"""

from __future__ import annotations

from torch import Tensor


def assert_tensors_equivalent(found: Tensor, wanted: Tensor) -> None:
    """Raise AssertionError unless shape, dtype and every value are the same; NaN equals NaN."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        left, right = f"{tuple(found.shape)} {found.dtype}", f"{tuple(wanted.shape)} {wanted.dtype}"
        raise AssertionError(f"tensors differ: {left} against {right}")
    differs = (found != wanted) & ~(found.isnan() & wanted.isnan())
    count = int(differs.sum())
    if count:
        worst = float((found.double() - wanted.double())[differs].abs().max())
        raise AssertionError(f"tensors differ at {count} of {found.numel()} places, at most by {worst:.3g}")
