"""What one routed layer does with a call: score, select, dispatch, reconstruct, record.

Owns: the parts that all modes share, and package-driven anchored top-1.
Does not know: packages, other layers, how a runtime is published.
Source: docs/experts.md, "Modes". Letters: T tokens, D hidden width, E experts.

A runtime is built aside, published once and never changed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from builder.errors import UsageError
from builder.experts.compilation import stays_in_python
from builder.experts.dispatch import dispatch_top1
from builder.experts.feature_extractors import RouterFeatureExtractor
from builder.experts.policies import OPEN, Admission, Route, anchored_top1, anchored_top1_of_one, fall_back
from builder.experts.router_heads import AffineRouterHead, ScoreBank
from builder.experts.telemetry import RouteTelemetry


class LayerRuntime(nn.Module):
    """Base: the experts of one layer in candidate order, their heads as one bank, and how they are used."""

    mode: ClassVar[str]

    def __init__(
        self,
        *,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        experts: Mapping[str, nn.Module],
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        super().__init__()
        self.expert_ids = _candidate_order(router_heads, experts)
        self.extractor = router_feature_extractor
        self.bank = ScoreBank(router_heads)
        if router_feature_extractor.width != router_heads[0].width:
            found, allowed = router_heads[0].width, router_feature_extractor.width
            raise UsageError(f"router heads: width: is {found}, must be {allowed}, the extractor's")
        self.experts = nn.ModuleList(experts[expert_id] for expert_id in self.expert_ids)
        self.calls = tuple(self.experts)  # the same modules; iterating a tuple is faster than a ModuleList
        self.route_telemetry = route_telemetry

    def route(self, tokens: Tensor, admission: Admission) -> Route:
        """The decision for tokens (T, D)."""
        raise NotImplementedError

    def execute(self, anchor: nn.Module, hidden_states: Tensor, route: Route) -> Tensor:
        """(..., D) -> (..., D) by a decision for the flattened tokens."""
        raise NotImplementedError

    @stays_in_python
    def run(self, anchor: nn.Module, hidden_states: Tensor, admission: Admission) -> Tensor:
        """(..., D) -> (..., D); a route is recorded after it has executed."""
        route = self.route(hidden_states.reshape(-1, hidden_states.shape[-1]), admission)
        output = self.execute(anchor, hidden_states, route)
        if self.route_telemetry is not None:
            self.route_telemetry.record(route, self.expert_ids)
        return output

    def scores(self, tokens: Tensor) -> Tensor:
        """(T, D) -> (T, E) f32, one column per head of the bank."""
        scores: Tensor = self.bank(self.extractor(tokens))
        return scores


class AnchoredTop1Runtime(LayerRuntime):
    """y = A(h) if r' = 0, else E_r'(h): exactly one MLP per token."""

    mode = "anchored_top1"

    def route(self, tokens: Tensor, admission: Admission) -> Route:
        """(T,) of candidates; a hard choice has no gradient."""
        with torch.no_grad():
            return fall_back(*anchored_top1(self.scores(tokens)), admission)

    @stays_in_python
    def execute(self, anchor: nn.Module, hidden_states: Tensor, route: Route) -> Tensor:
        """One call for each candidate that has tokens."""
        return dispatch_top1(hidden_states, route.effective, (anchor, *self.calls))

    @stays_in_python
    def run(self, anchor: nn.Module, hidden_states: Tensor, admission: Admission) -> Tensor:
        """As for every mode. One token alone, the decoding case, needs no tensors for its route."""
        alone = hidden_states.numel() == hidden_states.shape[-1]
        if not alone or admission is not OPEN or self.route_telemetry is not None:
            return super().run(anchor, hidden_states, admission)
        [scores] = self.scores(hidden_states.reshape(1, -1)).tolist()
        candidate = anchored_top1_of_one(scores)
        output: Tensor = (self.calls[candidate - 1] if candidate else anchor)(hidden_states)
        return output


def _candidate_order(heads: Sequence[AffineRouterHead], experts: Mapping[str, object]) -> tuple[str, ...]:
    """The experts' ids in the order of their heads. Raises UsageError where the two do not match."""
    ids = tuple(head.expert_id for head in heads)
    if not ids:
        raise UsageError("router heads: are none, must be at least one; leave the layer unconfigured instead")
    if len(set(ids)) != len(ids):
        raise UsageError(f"router heads: are {', '.join(ids)}, must be one for each expert")
    if set(ids) != set(experts):
        found, allowed = ", ".join(sorted(ids)), ", ".join(sorted(experts))
        raise UsageError(f"router heads: are for {found}, must be for {allowed}")
    return ids
