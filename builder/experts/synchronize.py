"""From a registry snapshot to the runtime of every layer: validate all, build all aside, publish once.

Owns: the transition "registry -> runtime", its checks across packages, its report.
Does not know: who calls it, tokens.
Source: docs/experts.md, "Synchronisation".

Nothing that a pass can see changes before the last step, so an error anywhere leaves the model as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from builder.experts.feature_extractors import (
    RouterFeatureExtractor,
    feature_extractor_kinds,
    make_feature_extractor,
)
from builder.experts.layer_runtime import AnchoredTop1Runtime, LayerRuntime
from builder.experts.lora_runtime import LoraMergeRuntime
from builder.experts.materialize import anchor_sha256, check_lora, materialize_delta, materialize_mlp
from builder.experts.metadata import AnchorDeltas, HierarchicalPairs, LoraMerge, PairTop2, refuse
from builder.experts.package import ExpertBinding, ExpertPackage, Pair
from builder.experts.payloads import Payload
from builder.experts.registry import RegistrySnapshot
from builder.experts.routed_mlp import RoutedMLP
from builder.experts.router_heads import AffineRouterHead
from builder.experts.runtime_board import ExpertSource, ModelRuntime, RuntimeBoard
from builder.experts.slot_runtimes import AnchorDeltasRuntime, HierarchicalPairsRuntime, PairTop2Runtime
from builder.experts.telemetry import RouteTelemetry


@dataclass(frozen=True)
class SynchronizationReport:
    """What `synchronize_registry()` did."""

    configured_layers: tuple[int, ...]
    """Every routed layer, ascending; a layer without experts was configured to its anchor alone."""
    registry_sha256: str
    previous_registry_sha256: str | None
    """What the runtime was made from before; None if it was configured directly."""
    packages_added: tuple[str, ...]
    """Identities in registry order that the runtime did not have before."""
    packages_removed: tuple[str, ...]
    changed_layers: tuple[int, ...]
    """Layers whose experts are others, or in another order, than before."""
    expert_ids: Mapping[int, tuple[str, ...]]
    """Candidates of each layer in order; layers without experts are left out."""
    modes: Mapping[int, str]
    """The mode of each layer with experts."""


@dataclass(frozen=True, eq=False)
class PlannedExpert:
    """One expert of one layer, before anything is made."""

    package: ExpertPackage
    head: AffineRouterHead
    binding: ExpertBinding

    @property
    def expert_id(self) -> str:
        """Unique in the layer."""
        return self.binding.expert_id

    @property
    def payload(self) -> Payload:
        """What the binding names."""
        return self.package.payloads[self.binding.payload]

    @property
    def source(self) -> ExpertSource:
        """For the report."""
        return self.package.identity, self.expert_id

    @property
    def subject(self) -> object:
        """What a refusal is about."""
        return self.package.subject

    @property
    def name(self) -> str:
        """Where in the package a refusal points."""
        return f"layer {self.binding.layer}, expert {self.expert_id!r}"


Plan = Mapping[int, tuple[PlannedExpert, ...]]
"""Experts of each layer in candidate order: packages in registry order, heads in package order."""


def synchronize(
    snapshot: RegistrySnapshot,
    layers: Mapping[int, RoutedMLP],
    board: RuntimeBoard,
    *,
    hidden_width: int,
    telemetry_invocations_max: int | None = None,
) -> SynchronizationReport:
    """Apply a registry snapshot to all routed layers at once.

    With `telemetry_invocations_max` each layer with experts gets a fresh recorder of that bound.
    Raises PackageError; then nothing has changed.
    """
    with board.writing:
        for package in snapshot.packages:
            check_package(package, layers)
        plan = make_plan(snapshot)
        for layer_index, experts in plan.items():
            check_layer(layer_index, experts, layers[layer_index].anchor)
        runtimes = {
            layer_index: build_layer(
                experts,
                layers[layer_index].anchor,
                hidden_width,
                make_telemetry(layer_index, telemetry_invocations_max),
            )
            for layer_index, experts in plan.items()
        }
        runtime = ModelRuntime(
            runtimes,
            snapshot.registry_sha256,
            tuple(package.identity for package in snapshot.packages),
            {index: tuple(expert.source for expert in experts) for index, experts in plan.items()},
        )
        report = make_report(snapshot, tuple(sorted(layers)), board.current, runtime)
        board.publish(runtime)
    return report


def check_package(package: ExpertPackage, layers: Mapping[int, RoutedMLP]) -> None:
    """The package is what it was when it was made, and every layer it names is a routed one."""
    package.check_unchanged()
    source = package.subject
    for layer_index in package.layers:
        if layer_index not in layers:
            allowed = f"one of the routed layers {', '.join(map(str, sorted(layers)))}"
            refuse("layer_unknown", source, "layer", found=layer_index, allowed=allowed)
    kind = package.features.kind
    if kind not in feature_extractor_kinds():
        allowed = f"one of {', '.join(feature_extractor_kinds())}"
        refuse("features_unknown", source, "features.kind", found=repr(kind), allowed=allowed)


def make_plan(snapshot: RegistrySnapshot) -> Plan:
    """Who is in each layer, in order."""
    plan: dict[int, list[PlannedExpert]] = {}
    for package in snapshot.packages:
        bindings = {(binding.layer, binding.expert_id): binding for binding in package.bindings}
        for layer_index in package.layers:
            for head in package.router_heads[layer_index]:
                binding = bindings[layer_index, head.expert_id]
                plan.setdefault(layer_index, []).append(PlannedExpert(package, head, binding))
    return {layer_index: tuple(plan[layer_index]) for layer_index in sorted(plan)}


def check_layer(layer_index: int, experts: tuple[PlannedExpert, ...], anchor: nn.Module) -> None:
    """The packages of one layer agree with each other and were made for its anchor."""
    first = experts[0].package
    seen: set[str] = set()
    anchor_hash: str | None = None
    for expert in experts:
        package, expert_id = expert.package, expert.expert_id
        source, where = package.subject, f"layer {layer_index}"
        if expert_id in seen:
            allowed = "the only expert of this id in the layer"
            refuse("expert_conflict", source, where, found=f"a second {expert_id!r}", allowed=allowed)
        seen.add(expert_id)
        if package.mode != first.mode:
            found, allowed = f"in mode {package.mode!r}", f"in mode {first.mode!r}, as package {first.name!r}"
            refuse("mode_conflict", source, where, found=found, allowed=allowed)
        if package.features != first.features:
            found, allowed = f"{package.features!r}", f"{first.features!r}, as package {first.name!r}"
            refuse("features_conflict", source, where, found=found, allowed=allowed)
        if expert.binding.anchor_sha256 is not None:
            anchor_hash = anchor_hash or anchor_sha256(anchor)
            if expert.binding.anchor_sha256 != anchor_hash:
                found, allowed = f"made for {expert.binding.anchor_sha256[:12]}...", f"{anchor_hash[:12]}..."
                refuse("anchor_mismatch", source, f"{where}, anchor", found=found, allowed=allowed)


def build_layer(
    experts: tuple[PlannedExpert, ...],
    anchor: nn.Module,
    hidden_width: int,
    telemetry: RouteTelemetry | None,
) -> LayerRuntime:
    """The runtime of one layer, made aside, on the anchor's device."""
    package = experts[0].package
    mode = package.mode
    device = next(anchor.parameters()).device
    router: dict[str, Any] = {
        "router_feature_extractor": build_extractor(package, hidden_width).to(device),
        "router_heads": [expert.head for expert in experts],
        "route_telemetry": telemetry,
    }
    runtime: LayerRuntime
    if isinstance(mode, LoraMerge):
        factors = {e.expert_id: check_lora(e.payload, anchor, e.subject, e.name) for e in experts}
        options: dict[str, Any] = {"updates_max": mode.updates_max, "combination": mode.combination}
        runtime = LoraMergeRuntime(anchor, experts=factors, **options, **router)
    elif isinstance(mode, AnchorDeltas):
        deltas = {
            e.expert_id: materialize_delta(e.payload, anchor, hidden_width, e.subject, e.name)
            for e in experts
        }
        options = {"deltas_max": mode.deltas_max, "combination": mode.combination}
        runtime = AnchorDeltasRuntime(experts=deltas, **options, **router)
    else:
        mlps = {
            e.expert_id: materialize_mlp(e.payload, anchor, hidden_width, e.subject, e.name) for e in experts
        }
        if isinstance(mode, HierarchicalPairs):
            runtime = HierarchicalPairsRuntime(experts=mlps, pair_heads=pairs_of(experts), **router)
        elif isinstance(mode, PairTop2):
            runtime = PairTop2Runtime(experts=mlps, **router)
        else:
            runtime = AnchoredTop1Runtime(experts=mlps, **router)
    return runtime.to(device)


def build_extractor(package: ExpertPackage, hidden_width: int) -> RouterFeatureExtractor:
    """The package's extractor, proved to turn a hidden state into as many features as the heads have."""
    extractor = make_feature_extractor(package.features.kind, package.features.width)
    found = tuple(extractor(torch.zeros(1, hidden_width)).shape)
    if found != (1, package.features.width):
        allowed = f"{found[-1]}, what {package.features.kind} makes of this model's hidden width"
        refuse(
            "features_width", package.subject, "features.width", found=package.features.width, allowed=allowed
        )
    return extractor


def pairs_of(experts: tuple[PlannedExpert, ...]) -> dict[Pair, AffineRouterHead]:
    """The declared pairs of a layer: packages in registry order, pairs in package order."""
    layer_index = experts[0].binding.layer
    packages = dict.fromkeys(expert.package for expert in experts)
    return {pair: head for package in packages for pair, head in package.pair_heads[layer_index].items()}


def make_report(
    snapshot: RegistrySnapshot, layers: tuple[int, ...], old: ModelRuntime, new: ModelRuntime
) -> SynchronizationReport:
    """What differs between the published runtime and the one that is about to be."""
    return SynchronizationReport(
        configured_layers=layers,
        registry_sha256=snapshot.registry_sha256,
        previous_registry_sha256=old.registry_sha256,
        packages_added=tuple(identity for identity in new.packages if identity not in old.packages),
        packages_removed=tuple(identity for identity in old.packages if identity not in new.packages),
        changed_layers=tuple(index for index in layers if _sources(old, index) != _sources(new, index)),
        expert_ids={index: runtime.expert_ids for index, runtime in new.by_layer.items()},
        modes={index: runtime.mode for index, runtime in new.by_layer.items()},
    )


def _sources(runtime: ModelRuntime, layer_index: int) -> object:
    """Whose experts a layer has; a layer that was configured directly equals nothing."""
    if layer_index in runtime.by_layer and layer_index not in runtime.sources:
        return object()
    return runtime.sources.get(layer_index)


def make_telemetry(layer_index: int, invocations_max: int | None) -> RouteTelemetry | None:
    """A fresh recorder, if one was asked for."""
    if invocations_max is None:
        return None
    return RouteTelemetry(layer_index=layer_index, invocations_max=invocations_max)
