"""The module that stands where a model's MLP stood.

Owns: the anchor, and the direct configuration of one layer in each mode.
Does not know: packages, registries, the model around it.
Source: docs/experts.md, "Modes". Letters: D hidden width, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from builder.errors import UsageError
from builder.experts.admission import Availability, Capacity, admission, check_ids
from builder.experts.compilation import stays_in_python
from builder.experts.feature_extractors import RouterFeatureExtractor
from builder.experts.layer_runtime import AnchoredTop1Runtime, LayerRuntime
from builder.experts.lora_runtime import LoraMergeRuntime
from builder.experts.metadata import Combination
from builder.experts.payloads import LoraFactors
from builder.experts.router_heads import AffineRouterHead
from builder.experts.runtime_board import RuntimeBoard
from builder.experts.slot_runtimes import AnchorDeltasRuntime, HierarchicalPairsRuntime, Pair, PairTop2Runtime
from builder.experts.telemetry import RouteTelemetry


class RoutedMLP(nn.Module):
    """A frozen MLP (the anchor, candidate zero) with experts beside it; without experts it is the MLP.

    Alone it publishes its own runtime. In a model all routed layers share the model's board, so that they
    change together.
    """

    board: RuntimeBoard

    def __init__(
        self, anchor: nn.Module, *, layer_index: int | None = None, board: RuntimeBoard | None = None
    ) -> None:
        super().__init__()
        if board is not None and layer_index is None:
            raise UsageError("routed MLP: layer_index: is missing, must be given with a board")
        self.anchor = anchor.requires_grad_(False)
        self.layer_index = layer_index
        if board is None:
            self.board = RuntimeBoard()
        else:
            object.__setattr__(self, "board", board)  # the model registers it once for all layers

    @property
    def runtime(self) -> LayerRuntime | None:
        """What is published for this layer; None: the anchor alone."""
        return None if self.layer_index is None else self.board.current.by_layer.get(self.layer_index)

    @stays_in_python
    def forward(
        self,
        hidden_states: Tensor,
        *,
        expert_availability: Availability | None = None,
        expert_capacity: Capacity | None = None,
    ) -> Tensor:
        """(..., D) -> (..., D), token by token. Without experts this is `anchor(hidden_states)`."""
        runtime, limits = self.board.seen_here()
        layer = None if self.layer_index is None else runtime.by_layer.get(self.layer_index)
        if layer is None:
            output: Tensor = self.anchor(hidden_states)
            return output
        for named, what in (
            (expert_availability, "expert_availability"),
            (expert_capacity, "expert_capacity"),
        ):
            if isinstance(named, Mapping):
                check_ids(named, layer.expert_ids, what)
        availability = limits.availability if expert_availability is None else expert_availability
        capacity = limits.capacity if expert_capacity is None else expert_capacity
        admitted = admission(layer.expert_ids, hidden_states, availability, capacity)
        return layer.run(self.anchor, hidden_states, admitted)

    def configure_anchored_top1(
        self,
        *,
        layer_index: int,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        experts: Mapping[str, nn.Module],
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        """Each token takes the anchor or one expert; candidates are in the order of `router_heads`."""
        runtime = AnchoredTop1Runtime(
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            experts=experts,
            route_telemetry=route_telemetry,
        )
        self._configure(layer_index, runtime, route_telemetry)

    def configure_pair_top2(
        self,
        *,
        layer_index: int,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        experts: Mapping[str, nn.Module],
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        """Each token takes the anchor, one survivor, or two experts mixed by their scores."""
        runtime = PairTop2Runtime(
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            experts=experts,
            route_telemetry=route_telemetry,
        )
        self._configure(layer_index, runtime, route_telemetry)

    def configure_hierarchical_pairs(
        self,
        *,
        layer_index: int,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        pair_heads: Mapping[Pair, AffineRouterHead],
        experts: Mapping[str, nn.Module],
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        """Pair heads preselect one declared pair or the anchor; member heads weigh the pair."""
        runtime = HierarchicalPairsRuntime(
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            pair_heads=pair_heads,
            experts=experts,
            route_telemetry=route_telemetry,
        )
        self._configure(layer_index, runtime, route_telemetry)

    def configure_anchor_deltas(
        self,
        *,
        layer_index: int,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        experts: Mapping[str, nn.Module],
        deltas_max: int = 2,
        combination: Combination = "unit",
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        """The anchor always runs; up to `deltas_max` experts are added to it."""
        runtime = AnchorDeltasRuntime(
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            experts=experts,
            deltas_max=deltas_max,
            combination=combination,
            route_telemetry=route_telemetry,
        )
        self._configure(layer_index, runtime, route_telemetry)

    def configure_lora_merge(
        self,
        *,
        layer_index: int,
        router_feature_extractor: RouterFeatureExtractor,
        router_heads: Sequence[AffineRouterHead],
        experts: Mapping[str, LoraFactors],
        updates_max: int = 2,
        combination: Combination = "softmax",
        route_telemetry: RouteTelemetry | None = None,
    ) -> None:
        """The anchor's projections with up to `updates_max` weighted LoRA updates."""
        runtime = LoraMergeRuntime(
            self.anchor,
            router_feature_extractor=router_feature_extractor,
            router_heads=router_heads,
            experts=experts,
            updates_max=updates_max,
            combination=combination,
            route_telemetry=route_telemetry,
        )
        self._configure(layer_index, runtime, route_telemetry)

    def clear_experts(self) -> None:
        """Back to the anchor alone."""
        if self.layer_index is not None:
            self._publish(self.layer_index, None)

    def _configure(
        self, layer_index: int, runtime: LayerRuntime, route_telemetry: RouteTelemetry | None
    ) -> None:
        if self.layer_index not in (None, layer_index):
            raise UsageError(f"routed MLP: layer_index: is {layer_index}, must be {self.layer_index}")
        if route_telemetry is not None and route_telemetry.layer_index != layer_index:
            found = route_telemetry.layer_index
            raise UsageError(f"telemetry: layer_index: is {found}, must be {layer_index}")
        self.layer_index = layer_index
        self._publish(layer_index, runtime)

    def _publish(self, layer_index: int, runtime: LayerRuntime | None) -> None:
        with self.board.writing:
            self.board.publish(self.board.current.with_layer(layer_index, runtime))
