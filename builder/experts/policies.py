"""From scores to routes: anchored selection, fallback, combination.

Owns: who is selected, who is effective, how two experts are weighed. All functions are pure and batch-free: a
token's route depends on its own scores, on availability, and (for capacity only) on the tokens before it.
Does not know: hidden states, experts, layers.
Source: docs/experts.md, "Routing". Letters: T tokens, E experts, S slots (1 or 2). Candidate 0 is the anchor,
candidate i is expert i - 1.

Rules that hold for every policy: an expert needs a score above zero; ties go to the lower index; a token
with a NaN score takes the anchor; an expert that is not available is replaced by nobody, so that the anchor
answers; no token is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from builder.experts.metadata import Combination

ANCHOR = 0


@dataclass(frozen=True, eq=False)
class Route:
    """The decision for T tokens. Shapes are (T,) for top-1 and (T, S) for modes with slots."""

    selected: Tensor
    """int64 candidate before fallback."""
    scores: Tensor
    """f32 score of the selected candidate; 0 for the anchor."""
    effective: Tensor
    """int64 candidate that executes."""
    overflow: Tensor
    """bool: an expert was selected and fell back to the anchor."""
    weights: Tensor | None = None
    """(T, S) f32 weight of each effective expert, 0 for the anchor; None for top-1."""


@dataclass(frozen=True, eq=False)
class Admission:
    """What limits the experts in one call."""

    availability: Tensor | None = None
    """bool, (E,) for all tokens or (T, E) for each; None: all are available."""
    capacity: Tensor | None = None
    """int64 (E,): tokens that each expert takes in this call, earlier tokens first; None: any number."""


OPEN = Admission()


def anchored_top1(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(T, E) -> candidate (T,) int64 and its score (T,): the best positive one, else the anchor with 0."""
    best, column = scores.max(dim=1)  # the first column of equal ones
    positive = best > 0
    return (column + 1) * positive, torch.where(positive, best, 0.0)


def anchored_top1_of_one(scores: list[float]) -> int:
    """The candidate of one token, by the same rules; cheaper than tensors of one element."""
    if math.isnan(sum(scores)) and any(map(math.isnan, scores)):  # the sum of two infinities is NaN too
        return ANCHOR
    best = max(scores)
    return scores.index(best) + 1 if best > 0 else ANCHOR


def anchored_top2(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(T, E) -> candidates (T, 2) int64 and their scores (T, 2): the two best positive ones, better first.

    Slot 1 is the anchor where fewer than two are positive, slot 0 where none is.
    """
    first, first_score = anchored_top1(scores)
    taken = (first - 1).clamp_min(0)[:, None]
    second, second_score = anchored_top1(scores.scatter(1, taken, -torch.inf))
    second = second * (first > 0)  # a NaN row has no first, and so no second
    selected_scores = torch.stack([first_score, torch.where(second > 0, second_score, 0.0)], dim=1)
    return torch.stack([first, second], dim=1), selected_scores


def fall_back(selected: Tensor, scores: Tensor, admission: Admission = OPEN) -> Route:
    """The effective route of a selection (T,) or (T, S): unavailable first, then over capacity -> anchor."""
    if admission.availability is None and admission.capacity is None:
        return Route(selected, scores, selected, torch.zeros_like(selected, dtype=torch.bool))
    effective = selected
    if admission.availability is not None:
        effective = effective * _is_available(effective, admission.availability)
    if admission.capacity is not None:
        effective = effective * _is_within_capacity(effective, admission.capacity)
    return Route(selected, scores, effective, effective != selected)


def weigh(route: Route, combination: Combination) -> Route:
    """The route with weights (T, S): a lone survivor of `softmax` weighs exactly 1."""
    alive = route.effective > 0
    if combination == "unit":
        weights = alive.float()
    elif combination == "sigmoid":
        weights = torch.sigmoid(route.scores) * alive
    else:
        # Finite limits instead of infinities: inf - inf would be NaN, in the weights or in their gradient.
        limit = torch.finfo(torch.float32)
        scores = route.scores.clamp(max=limit.max).masked_fill(~alive, limit.min)
        weights = scores.softmax(dim=1) * alive
    return replace(route, weights=weights)


def by_slot(tensor: Tensor) -> Tensor:
    """(T,) or (T, S) -> (T, S); top-1 has one slot."""
    return tensor if tensor.dim() == 2 else tensor[:, None]


def _is_available(candidates: Tensor, availability: Tensor) -> Tensor:
    """bool like `candidates`; the anchor is always available."""
    columns = (candidates - 1).clamp_min(0)
    if availability.dim() == 1:
        available = availability[columns]
    else:
        available = availability.gather(1, by_slot(columns)).reshape(candidates.shape)
    return available | (candidates == ANCHOR)


def _is_within_capacity(candidates: Tensor, capacity: Tensor) -> Tensor:
    """bool like `candidates`: tokens in order, and slots in order within a token, until an expert is full."""
    flat = candidates.reshape(-1)
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=len(capacity) + 1)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(flat)
    rank[order] = torch.arange(len(flat), device=flat.device) - starts[flat[order]]
    within = rank < capacity[(flat - 1).clamp_min(0)]
    return (within | (flat == ANCHOR)).reshape(candidates.shape)
