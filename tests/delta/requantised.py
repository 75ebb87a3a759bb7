"""A tiny tensor whose codes were chosen for its patch."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import numpy as np

from builder.delta import make_patch
from builder.family.budget.requantiser import Point, Requantiser
from builder.family.budget.wanted import WantedChange
from tests.delta.tiny_containers import Blob, Floats, container, quantised

TAG = 0x05E12A84
STEP = 0.03
"""Of the factors' rounding, in norms of a group."""


def requantised(
    q: Floats, *, rows: int, trade: float | None = None, bits: int = 4, strength: float = 0.3
) -> tuple[bytes, bytes, bytes]:
    """Base, target and patch of a random tensor that changes by P q; `trade` leaves zero residual."""
    random = np.random.default_rng(5)
    weights = random.standard_normal((rows, q.shape[1])) * random.uniform(0.1, 0.3, (rows, 1))
    p = random.standard_normal((rows, len(q)))
    p *= strength * np.abs(weights).mean(1, keepdims=True) / np.sqrt(np.square(p @ q).mean())
    blob = quantised(weights, bits)
    change = WantedChange("tensor", q.shape[1], p.astype(np.float32), q.astype(np.float32))
    one_tensor = SimpleNamespace(record=lambda _: SimpleNamespace(bits=bits), raw=lambda _: blob.data)
    requantiser = Requantiser(one_tensor, [change], 0)
    if trade is not None:
        requantiser.give_weights(iter([(weights + p @ q).astype(np.float32)]))
    (made,) = requantiser.run(Point(STEP, trade))
    base, target = container(TAG, [blob]), container(TAG, [Blob(3, blob.shape, bits, made.blob)])
    offset = target.index(made.blob)
    shift = made.shift[:4] + struct.pack("<I", offset) + made.shift[8:] if made.shift else b""
    return base, target, make_patch(base, target, shifts=shift)
