"""Choosing the next id from logits: the greedy rule, and the seeded draw of docs/numerics.md, "Sampling".

Owns: the reference's own way through that page, in float64.
Does not know: sessions, models, the engine (which must draw the same ids).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from builder.errors import UsageError, refusal
from builder.runtime.interface import GREEDY_TEMPERATURE, Sampling

TEMPERATURE_MAX = 1e6
PCG_MULTIPLIER = 6364136223846793005
PCG_INCREMENT = 1442695040888963407
STATE_MASK = (1 << 64) - 1
OUTPUT_MASK = (1 << 32) - 1
UNIFORM_BITS = 24


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """(V,) f32 -> (V,) natural log probabilities, computed in float64."""
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def draw(logits: NDArray[np.float32], sampling: Sampling, allowed: NDArray[np.bool_] | None = None) -> int:
    """The next id. Temperature 0: the largest logit, ties to the lower id; else `random_state` moves on.

    Only ids that are `allowed` are drawn, one of which there must be. Raises `UsageError` (bad_argument) for
    a temperature, top_p or top_k out of its range.
    """
    _check(sampling)
    if allowed is not None:
        ids = np.flatnonzero(allowed)
        return int(ids[draw(logits[ids], sampling)])
    if sampling.temperature == GREEDY_TEMPERATURE:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")  # the higher logit first, then the lower id
    order = order[: sampling.top_k] if sampling.top_k else order
    ranked = logits[order].astype(np.float64)
    weights = np.exp((ranked - ranked[0]) / float(np.float32(sampling.temperature)))
    running = np.cumsum(weights)
    enough = running >= float(np.float32(sampling.top_p)) * running[-1]
    nucleus = running[: int(enough.argmax()) + 1] if enough.any() else running
    sampling.random_state, output = pcg32(sampling.random_state)
    uniform = (output >> (32 - UNIFORM_BITS)) / (1 << UNIFORM_BITS)  # [0, 1)
    above = nucleus > uniform * nucleus[-1]
    return int(order[int(above.argmax()) if above.any() else len(nucleus) - 1])


def pcg32(state: int) -> tuple[int, int]:
    """The next state and its 32 bits (PCG-XSH-RR 64/32)."""
    state = (state * PCG_MULTIPLIER + PCG_INCREMENT) & STATE_MASK
    shifted = (((state >> 18) ^ state) >> 27) & OUTPUT_MASK
    turn = state >> 59
    return state, ((shifted >> turn) | (shifted << (-turn & 31))) & OUTPUT_MASK


def _check(sampling: Sampling) -> None:
    rules = (
        ("temperature", sampling.temperature, 0 <= sampling.temperature <= TEMPERATURE_MAX, "0 to 1e6"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k, 0 <= sampling.top_k < 1 << 32, "0 or a count"),
        ("random_state", sampling.random_state, 0 <= sampling.random_state <= STATE_MASK, "0 to 2^64 - 1"),
    )
    for field, found, is_fine, allowed in rules:
        if not is_fine or not math.isfinite(found):
            message = refusal("sampling", field, found=found, allowed=allowed)
            raise UsageError(message, code="bad_argument")
