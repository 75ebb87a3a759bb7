"""What of an adapter's change arrives in a container, from the two files alone.

Owns: `Arrival`. Does not know: how the codes were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from builder.cact.codes import levels
from builder.cact.layout import CODEBOOKS, GROUP
from builder.cact.reader import Container
from builder.family.budget.wanted import WantedChange

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Arrival:
    """How the change from base to member compares with the adapter's, over all tensors that it changes."""

    gain: float
    """The component along the wanted change; 1 is all of it."""
    relative_error: float
    """Size of the difference to the wanted change, against the size of that change."""
    lowest_gain: float
    highest_gain: float
    """Of a single tensor."""


def measure_arrival(base: Container, member: Container, changes: Sequence[WantedChange]) -> Arrival:
    """Compare what the containers say with what the adapter wants."""
    squares, products, errors = np.array([_sums(base, member, change) for change in changes]).T
    gains = [product / square for square, product in zip(squares, products, strict=True) if square > 0]
    total = float(squares.sum())
    return Arrival(
        gain=float(products.sum()) / total,
        relative_error=float(errors.sum() / total) ** 0.5,
        lowest_gain=float(min(gains)),
        highest_gain=float(max(gains)),
    )


def _sums(base: Container, member: Container, change: WantedChange) -> tuple[float, float, float]:
    wanted = change.p.astype(np.float64) @ change.q.astype(np.float64)
    realised = _rotated_weights(member, change.name) - _rotated_weights(base, change.name)
    product = float((realised * wanted).sum())
    return float(np.square(wanted).sum()), product, float(np.square(realised - wanted).sum())


def _rotated_weights(container: Container, name: str) -> Doubles:
    values = levels(container.record(name).bits, CODEBOOKS).astype(np.float64)[container.codes(name)]
    groups = values.reshape(len(values), -1, GROUP) * container.norms(name).astype(np.float64)[..., None]
    return groups.reshape(values.shape)
