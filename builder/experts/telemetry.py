"""Bounded, private, in-memory records of the routes that were executed.

Owns: the record, its bound, the summary.
Does not know: tokens, text, hidden states, logits, expert outputs; none of them ever reaches it.
Source: docs/experts.md, "Telemetry".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from builder.errors import UsageError
from builder.experts.compilation import stays_in_python
from builder.experts.policies import ANCHOR, Route, by_slot

INVOCATIONS_MAX = 1024


@dataclass(frozen=True, eq=False)
class RouteRecord:
    """One invocation of one layer: R = (layer, r, g_r, r', o, expert ids), in detached CPU copies."""

    layer_index: int
    selected: Tensor
    """(T,) or (T, slots) int64: candidate before fallback."""
    scores: Tensor
    """f32, same shape: score of the selected candidate, 0 for the anchor."""
    effective: Tensor
    """int64, same shape: candidate that executed."""
    overflow: Tensor
    """bool, same shape."""
    expert_ids: tuple[str, ...]
    """Candidate i is `expert_ids[i - 1]`."""


@dataclass(frozen=True)
class RouteSummary:
    """Counts over the records that are kept. `anchor_count + expert_count == token_count`."""

    invocation_count: int
    token_count: int
    anchor_count: int
    """Tokens for which no expert executed."""
    expert_count: int
    """Tokens for which at least one expert executed."""
    overflow_count: int
    """Tokens of which at least one selected expert fell back."""


class RouteTelemetry:
    """The last `invocations_max` invocations of one routed layer."""

    def __init__(self, *, layer_index: int, invocations_max: int = INVOCATIONS_MAX) -> None:
        if invocations_max < 1:
            raise UsageError(f"telemetry: invocations_max: is {invocations_max}, must be at least 1")
        self.layer_index = layer_index
        self._records: deque[RouteRecord] = deque(maxlen=invocations_max)

    @property
    def records(self) -> tuple[RouteRecord, ...]:
        """What is kept, oldest first."""
        return tuple(self._records.copy())  # a copy is one step, so another thread may record meanwhile

    @stays_in_python
    def record(self, route: Route, expert_ids: tuple[str, ...]) -> None:
        """Keep copies of a route, and forget the oldest record if there are too many."""
        parts = (route.selected, route.scores, route.effective, route.overflow)
        selected, scores, effective, overflow = (_private_copy(part) for part in parts)
        record = RouteRecord(self.layer_index, selected, scores, effective, overflow, expert_ids)
        self._records.append(record)

    def summarize(self) -> RouteSummary:
        """Anchor, expert, overflow, token and invocation counts."""
        records = self.records
        executed = [_by_token(record.effective != ANCHOR) for record in records]
        token_count = sum(len(flags) for flags in executed)
        expert_count = _count(executed)
        return RouteSummary(
            invocation_count=len(records),
            token_count=token_count,
            anchor_count=token_count - expert_count,
            expert_count=expert_count,
            overflow_count=_count(_by_token(record.overflow) for record in records),
        )

    def clear(self) -> None:
        """Forget everything."""
        self._records.clear()


@stays_in_python
def _private_copy(tensor: Tensor) -> Tensor:
    """On the CPU, with storage of its own: a view would keep all that it is a view of."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _by_token(flags: Tensor) -> Tensor:
    """(T,) or (T, slots) bool -> (T,): any slot."""
    return by_slot(flags).any(dim=1)


def _count(flags: Iterable[Tensor]) -> int:
    return sum(int(torch.count_nonzero(each)) for each in flags)
