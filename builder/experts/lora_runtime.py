"""Merging LoRA updates in parameter space, per token: W + w1 * s1 * B1 A1 + w2 * s2 * B2 A2.

Owns: the merged MLP and its mode.
Does not know: packages, other layers.
Source: docs/experts.md, "Modes". Letters: R merged tokens, r rank, S slots.

The merged weight is never built: it differs from token to token. `linear(x, W + w s B A)` is computed as
`linear(x, W) + w s B (A x)` inside each projection, before the MLP's own non-linearity: it is the same map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from builder.errors import UsageError
from builder.experts.compilation import stays_in_python
from builder.experts.dispatch import dispatch_top1
from builder.experts.feature_extractors import RouterFeatureExtractor
from builder.experts.layer_runtime import LayerRuntime
from builder.experts.materialize import check_lora, copy_with
from builder.experts.metadata import Combination
from builder.experts.payloads import LORA_A, LORA_B, LoraFactors
from builder.experts.policies import Admission, Route
from builder.experts.router_heads import AffineRouterHead
from builder.experts.slot_runtimes import checked_slots, slot_route
from builder.experts.telemetry import RouteTelemetry


@dataclass(frozen=True, eq=False)
class Update:
    """One expert's part in a merged call: its rows (n,) int64 and their weights (n,) f32."""

    expert_index: int
    rows: Tensor
    weights: Tensor


# What the merged projections of the call in progress add. The MLP between passes tokens only.
_updates: ContextVar[tuple[Update, ...]] = ContextVar("lora_updates", default=())


class LoraExpert(nn.Module):
    """The factors of one expert as buffers, so that they follow the model's device and dtype."""

    def __init__(self, factors: LoraFactors, device: torch.device) -> None:
        super().__init__()
        self.scale, self.targets = factors.scale, factors.targets
        for number, target in enumerate(factors.targets):
            for suffix in (LORA_A, LORA_B):
                own = factors.tensors[target + suffix].to(device, copy=True)
                self.register_buffer(f"target_{number}{suffix.replace('.', '_')}", own)

    def factors(self, target: str) -> tuple[Tensor, Tensor] | None:
        """A (r, in) and B (out, r), or None where this expert leaves the projection as it is."""
        if target not in self.targets:
            return None
        number = self.targets.index(target)
        a, b = (self.get_buffer(f"target_{number}{suffix.replace('.', '_')}") for suffix in (LORA_A, LORA_B))
        return a, b


class MergedLinear(nn.Module):
    """A projection of the anchor plus the updates of the call in progress; both are only borrowed."""

    linear: nn.Linear
    experts: tuple[LoraExpert, ...]

    def __init__(self, linear: nn.Linear, target: str, experts: Sequence[LoraExpert]) -> None:
        super().__init__()
        object.__setattr__(self, "linear", linear)
        object.__setattr__(self, "experts", tuple(experts))
        self.target = target

    @stays_in_python
    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out) for R tokens. Updates are added in candidate order."""
        rows = x.reshape(-1, x.shape[-1])  # (R, in)
        output: Tensor = self.linear(rows)  # (R, out)
        for update in _updates.get():
            expert = self.experts[update.expert_index]
            factors = expert.factors(self.target)
            if factors is None:
                continue
            low = functional.linear(rows.index_select(0, update.rows), factors[0])  # (n, r)
            change = functional.linear(low, factors[1]).float() * (update.weights * expert.scale)[:, None]
            output = torch.index_add(output, 0, update.rows, change.to(output.dtype))
        return output.reshape(*x.shape[:-1], -1)


class LoraMergeRuntime(LayerRuntime):
    """The anchor's MLP with none, one or two weighted LoRA updates in its projections.

    Order and fallback as in pair-shaped top-2: an unavailable update is left out, and under `softmax` the
    survivor weighs exactly 1. A token without updates takes the anchor itself.
    """

    mode = "lora_merge"

    def __init__(
        self,
        anchor: nn.Module,
        *,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        experts: Mapping[str, LoraFactors],
        updates_max: int = 2,
        combination: Combination = "softmax",
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        device = next(anchor.parameters()).device
        for expert_id, factors in experts.items():
            check_lora(factors, anchor, "experts", expert_id)
        super().__init__(
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            experts={expert_id: LoraExpert(factors, device) for expert_id, factors in experts.items()},
            route_telemetry=route_telemetry,
        )
        self.slots, self.combination = checked_slots(updates_max), combination
        self.merged = _merged_mlp(anchor, [_as_lora(expert) for expert in self.experts])

    def route(self, tokens: Tensor, admission: Admission) -> Route:
        """(T, S) of candidates with weights."""
        return slot_route(self.scores(tokens), admission, self.slots, self.combination)

    @stays_in_python
    def execute(self, anchor: nn.Module, hidden_states: Tensor, route: Route) -> Tensor:
        """One call of the anchor for tokens without updates, one of the merged MLP for the others."""
        touched = (route.effective > 0).any(dim=1)  # (T,)

        def merged(tokens: Tensor) -> Tensor:
            with _updating(_updates_of(route, touched)):
                output: Tensor = self.merged(tokens)
            return output

        return dispatch_top1(hidden_states, touched.long(), (anchor, merged))


@contextmanager
def _updating(updates: tuple[Update, ...]) -> Iterator[None]:
    token = _updates.set(updates)
    try:
        yield
    finally:
        _updates.reset(token)


def _updates_of(route: Route, touched: Tensor) -> tuple[Update, ...]:
    """The updates of the touched rows, in candidate order; an expert without rows is not among them."""
    assert route.weights is not None  # slot_route weighs
    effective, weights = route.effective[touched], route.weights[touched]  # (R, S)
    updates = []
    for candidate in sorted(set(effective.reshape(-1).tolist()) - {0}):
        row, slot = (effective == candidate).nonzero(as_tuple=True)
        updates.append(Update(candidate - 1, row, weights[row, slot]))
    return tuple(updates)


def _merged_mlp(anchor: nn.Module, experts: Sequence[LoraExpert]) -> nn.Module:
    """The anchor's structure over the anchor's own parameters, with the targeted projections replaced."""
    merged = copy_with(anchor, {})
    for target in dict.fromkeys(target for expert in experts for target in expert.targets):
        linear = merged.get_submodule(target)
        if not isinstance(linear, nn.Linear):
            raise UsageError(f"lora: target: is {target!r}, must be a linear module of the anchor")
        merged.set_submodule(target, MergedLinear(linear, target, experts))
    return merged


def _as_lora(module: nn.Module) -> LoraExpert:
    assert isinstance(module, LoraExpert)  # built so in __init__
    return module
