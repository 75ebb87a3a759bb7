"""Modes in which a token has two slots: pair-shaped top-2, hierarchical pairs, anchor plus deltas.

Owns: selection and execution of these modes, with their fallback and ordering contracts.
Does not know: packages, other layers.
Source: docs/experts.md, "Modes". Letters: T tokens, D hidden width, S slots, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from builder.errors import UsageError
from builder.experts.compilation import stays_in_python
from builder.experts.dispatch import dispatch_slots, mix_slots
from builder.experts.feature_extractors import RouterFeatureExtractor
from builder.experts.layer_runtime import LayerRuntime
from builder.experts.metadata import Combination
from builder.experts.policies import Admission, Route, anchored_top1, anchored_top2, fall_back, weigh
from builder.experts.router_heads import AffineRouterHead, ScoreBank
from builder.experts.telemetry import RouteTelemetry

Pair = tuple[str, str]


class PairTop2Runtime(LayerRuntime):
    """The anchor, one survivor, or two experts mixed by the softmax of their scores.

    Order: slot 0 has the better score, ties go to the lower candidate. Fallback: an unavailable expert leaves
    its slot empty; the other one then weighs exactly 1; with two empty slots the anchor answers.
    """

    mode = "pair_top2"

    def route(self, tokens: Tensor, admission: Admission) -> Route:
        """(T, 2) of candidates with weights."""
        return weigh(fall_back(*anchored_top2(self.scores(tokens)), admission), "softmax")

    @stays_in_python
    def execute(self, anchor: nn.Module, hidden_states: Tensor, route: Route) -> Tensor:
        """One call for each candidate that has tokens in any slot."""
        weights = _weights(route)
        return dispatch_slots(hidden_states, route.effective, weights, (anchor, *self.calls))


class HierarchicalPairsRuntime(PairTop2Runtime):
    """A first level selects one of P declared pairs (or the anchor), a second weighs its two members.

    Order: pairs compete as in anchored top-1 with the pair heads, ties go to the lower pair; slots keep the
    pair's declared order. A member needs no positive score of its own: the pair's head gave the evidence.
    Fallback as in pair-shaped top-2; a pair that was not selected is never searched.
    """

    mode = "hierarchical_pairs"
    members: Tensor

    def __init__(
        self,
        *,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        pair_heads: Mapping[Pair, AffineRouterHead],
        experts: Mapping[str, nn.Module],
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        super().__init__(
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            experts=experts,
            route_telemetry=route_telemetry,
        )
        candidate = {expert_id: index + 1 for index, expert_id in enumerate(self.expert_ids)}
        for pair in pair_heads:
            if len(set(pair)) != 2 or not set(pair) <= set(candidate):
                raise UsageError(f"pair: is {pair!r}, must be two experts of the layer")
        self.pair_bank = ScoreBank(list(pair_heads.values()))
        rows = [(0, 0), *((candidate[first], candidate[second]) for first, second in pair_heads)]
        self.register_buffer("members", torch.tensor(rows))  # (P + 1, 2); row 0: the anchor alone

    def route(self, tokens: Tensor, admission: Admission) -> Route:
        """(T, 2) of candidates in declared order; `scores` are the members' own."""
        features = self.extractor(tokens)
        pair, _ = anchored_top1(self.pair_bank(features))
        selected = self.members[pair]  # (T, 2)
        scores = self.bank(features).gather(1, (selected - 1).clamp_min(0))  # (T, 2)
        sound = (selected > 0) & ~scores.isnan().any(dim=1, keepdim=True)
        route = fall_back(selected * sound, torch.where(sound, scores, 0.0), admission)
        return weigh(route, "softmax")


class AnchorDeltasRuntime(LayerRuntime):
    """y = A(h) + sum of weight * delta(h) over none, one or two experts; the anchor runs for all tokens.

    Order: as in pair-shaped top-2. Fallback: an unavailable delta is left out, and nothing takes its weight
    except under `softmax`, where the survivor's weight is 1. The sum is taken in float32, slot 0 first.
    """

    mode = "anchor_plus_deltas"

    def __init__(
        self,
        *,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        experts: Mapping[str, nn.Module],
        deltas_max: int = 2,
        combination: Combination = "unit",
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        super().__init__(
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            experts=experts,
            route_telemetry=route_telemetry,
        )
        self.slots, self.combination = checked_slots(deltas_max), combination

    def route(self, tokens: Tensor, admission: Admission) -> Route:
        """(T, S) of candidates with weights."""
        return slot_route(self.scores(tokens), admission, self.slots, self.combination)

    @stays_in_python
    def execute(self, anchor: nn.Module, hidden_states: Tensor, route: Route) -> Tensor:
        """The anchor once for all tokens, then each delta once for the tokens that take it."""
        output: Tensor = anchor(hidden_states)
        used = route.effective > 0
        touched = used.any(dim=1).nonzero()[:, 0]  # (R,)
        if not len(touched):
            return output
        rows = output.reshape(-1, output.shape[-1])  # (T, D)
        deltas = mix_slots(hidden_states, route.effective, used, _weights(route), (anchor, *self.calls))
        changed = (rows.index_select(0, touched).float() + deltas.index_select(0, touched)).to(output.dtype)
        return torch.index_copy(rows, 0, touched, changed).reshape(output.shape)


def slot_route(scores: Tensor, admission: Admission, slots: int, combination: Combination) -> Route:
    """(T, E) -> the best one or two positive experts, (T, S), with weights."""
    selected, selected_scores = anchored_top2(scores)
    return weigh(fall_back(selected[:, :slots], selected_scores[:, :slots], admission), combination)


def checked_slots(count: int) -> int:
    """1 or 2. Raises UsageError."""
    if count not in (1, 2):
        raise UsageError(f"experts per token: is {count}, must be 1 or 2")
    return count


def _weights(route: Route) -> Tensor:
    assert route.weights is not None  # every route of this module was weighed
    return route.weights
