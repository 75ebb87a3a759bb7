"""The rules of docs/experts.md in plain Python, token by token, with nothing shared with the library.

A route is a list of (candidate before fallback, candidate that executes, weight), one for each slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Slot = tuple[int, int, float]
Vector = list[float]


def scores_of(token: Vector, heads: Sequence[tuple[Vector, float]]) -> list[float]:
    return [sum(w * x for w, x in zip(weight, token, strict=True)) + bias for weight, bias in heads]


def best_positive(scores: Sequence[float], excluded: set[int]) -> int:
    """Candidate of the best score above zero that is not excluded, the lowest of equals; 0 without one."""
    if any(math.isnan(score) for score in scores):
        return 0
    best = 0
    for index, score in enumerate(scores):
        beats = score > 0 and (best == 0 or score > scores[best - 1])
        if beats and index + 1 not in excluded:
            best = index + 1
    return best


def select(scores: Sequence[float], slots: int) -> list[int]:
    first = best_positive(scores, set())
    if slots == 1:
        return [first]
    return [first, best_positive(scores, {first}) if first else 0]


def weigh(scores: Sequence[float], combination: str) -> list[float]:
    """Weights of the experts that execute."""
    if combination == "unit":
        return [1.0 for _ in scores]
    if combination == "sigmoid":
        return [1 / (1 + math.exp(-score)) for score in scores]
    total = sum(math.exp(score - max(scores)) for score in scores)
    return [math.exp(score - max(scores)) / total for score in scores]


class Fallback:
    """Availability and capacity, counted as tokens come by."""

    def __init__(self, available: Callable[[int, int], bool], capacity: Sequence[int] | None) -> None:
        self.available, self.left = available, None if capacity is None else list(capacity)

    def __call__(self, token: int, candidate: int) -> int:
        if candidate == 0 or not self.available(token, candidate):
            return 0
        if self.left is not None:
            if self.left[candidate - 1] == 0:
                return 0
            self.left[candidate - 1] -= 1
        return candidate


def route_tokens(
    scores: Sequence[Sequence[float]], slots: int, fallback: Fallback, combination: str = "softmax"
) -> list[list[Slot]]:
    routes = []
    for token, row in enumerate(scores):
        selected = select(row, slots)
        effective = [fallback(token, candidate) for candidate in selected]
        alive = [candidate for candidate in effective if candidate]
        weights = iter(weigh([row[candidate - 1] for candidate in alive], combination))
        routes.append([(s, e, next(weights) if e else 0.0) for s, e in zip(selected, effective, strict=True)])
    return routes
