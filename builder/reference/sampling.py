"""Choosing the next id from logits.

Owns: the greedy rule and log probabilities in float64.
Does not know: sessions, models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from builder.runtime.interface import GREEDY_TEMPERATURE, Sampling


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """(V,) f32 -> (V,) natural log probabilities, computed in float64."""
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def draw(logits: NDArray[np.float32], sampling: Sampling) -> int:
    """The next id: the largest logit at temperature 0 (ties to the lower id)."""
    if sampling.temperature == GREEDY_TEMPERATURE:
        return int(logits.argmax())
    raise NotImplementedError
