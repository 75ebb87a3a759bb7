"""What a caller may say about experts in one call: who is available, and how many tokens each takes.

Owns: the forms that availability and capacity can have, and turning them into tensors for one layer.
Does not know: routes (policies.py applies what is said here).
Source: docs/experts.md, "Fallback".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from builder.errors import UsageError
from builder.experts.policies import OPEN, Admission

Availability = Tensor | Mapping[str, bool]
"""bool (E,) or (..., E) in candidate order, or by expert id; an expert that is not named is available."""
Capacity = int | Tensor | Mapping[str, int]
"""Tokens per call: one number for all, int (E,), or by expert id; who is not named has no limit."""

NO_LIMIT = 2**62


@dataclass(frozen=True)
class Limits:
    """Availability and capacity by expert id for a whole model; each layer takes what concerns it."""

    availability: Mapping[str, bool] | None = None
    capacity: Mapping[str, int] | None = None


def check_ids(named: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise UsageError for an id that no routed layer has."""
    unknown = sorted(set(named) - set(known))
    if unknown:
        raise UsageError(f"{what}: names {unknown[0]!r}, which is no expert here", code="expert_unknown")


def admission(
    expert_ids: tuple[str, ...],
    hidden_states: Tensor,
    availability: Availability | None,
    capacity: Capacity | None,
) -> Admission:
    """The tensors for one call of one layer. Raises UsageError for a wrong dtype or shape."""
    if availability is None and capacity is None:
        return OPEN
    device = hidden_states.device
    return Admission(
        None if availability is None else _available(expert_ids, hidden_states, availability).to(device),
        None if capacity is None else _capacity(expert_ids, capacity).to(device),
    )


def _available(expert_ids: tuple[str, ...], hidden_states: Tensor, availability: Availability) -> Tensor:
    """bool (E,) or (T, E)."""
    if not isinstance(availability, Tensor):
        return torch.tensor([bool(availability.get(expert, True)) for expert in expert_ids])
    if availability.dtype != torch.bool:
        raise UsageError(f"expert_availability: dtype: is {availability.dtype}, must be bool")
    expert_count = len(expert_ids)
    leading = hidden_states.shape[:-1]
    shape = tuple(availability.shape)
    if shape not in {(expert_count,), (*leading, expert_count), (leading.numel(), expert_count)}:
        allowed = f"({expert_count},) or {(*leading, expert_count)}"
        raise UsageError(f"expert_availability: shape: is {shape}, must be {allowed}")
    return availability if len(shape) == 1 else availability.reshape(-1, expert_count)


def _capacity(expert_ids: tuple[str, ...], capacity: Capacity) -> Tensor:
    """int64 (E,)."""
    if isinstance(capacity, int):
        tokens_max = torch.full((len(expert_ids),), capacity)
    elif isinstance(capacity, Tensor):
        tokens_max = capacity
    else:
        tokens_max = torch.tensor([capacity.get(expert, NO_LIMIT) for expert in expert_ids])
    shape = tuple(tokens_max.shape)
    if tokens_max.dtype != torch.int64 or shape != (len(expert_ids),) or bool((tokens_max < 0).any()):
        found = f"{shape} {tokens_max.dtype}"
        allowed = f"({len(expert_ids)},) int64, nothing below 0"
        raise UsageError(f"expert_capacity: is {found}, must be {allowed}")
    return tokens_max
