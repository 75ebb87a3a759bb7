"""Finding the point that fits a budget.

Owns: the two scales of points, from faithful to small, and the bisection over each. It ends after a fixed
number of trials, and the same inputs give the same point. Does not know: how a point is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from builder.family.budget.requantiser import Point

CELL = 1500 / 65536
"""A cell of the 4-bit code near zero, in norms of a group."""
POINTS_PER_OCTAVE = 12
TRADE_RANGE = 0.002, 0.032
"""Below, hardly a byte is saved; above, zero residual is more faithful at the same size (docs/budget.md)."""
STEP_OF_TRADE = 0.26
"""At a trade t, factors rounded to 0.26 sqrt(t) lose as much a bit as codes do: sqrt(12 / (128 * 2 ln 2))."""
STEP_RANGE = 0.5 * CELL, 6 * CELL
FRIENDLY_STEP = 1.4 * CELL
"""Prediction errors of about 0.08 of a cell, beyond which the shift's own rounding begins to show."""


@dataclass(frozen=True)
class Found:
    """The first point of a scale that fits, or None and the size at its small end."""

    point: Point | None
    size: int


def friendly_point() -> Point:
    """What `--patch-friendly` means."""
    return Point(FRIENDLY_STEP)


def trade_points() -> list[Point]:
    """Rate-distortion optimised, from faithful to small."""
    return [Point(STEP_OF_TRADE * trade**0.5, trade) for trade in _scale(*TRADE_RANGE)]


def step_points() -> list[Point]:
    """Zero residual, from faithful to small."""
    return [Point(step, is_trial=True) for step in _scale(*STEP_RANGE)]


def first_that_fits(points: Sequence[Point], budget: int, size_at: Callable[[Point], int]) -> Found:
    """The most faithful point whose patch is at most `budget` bytes, taking sizes to fall along `points`."""
    smallest = size_at(points[-1])
    if smallest > budget:
        return Found(None, smallest)
    low, high, size = 0, len(points) - 1, smallest
    while low < high:
        middle = (low + high) // 2
        found = size_at(points[middle])
        if found > budget:
            low = middle + 1
        else:
            high, size = middle, found
    return Found(points[high], size)


def _scale(first: float, last: float) -> list[float]:
    """A geometric scale; powers of two by repeated products, so that every machine has the same numbers."""
    ratio = 1.0594630943592953  # 2 ** (1 / 12)
    values = [first]
    while values[-1] * ratio <= last:
        values.append(values[-1] * ratio)
    return values
