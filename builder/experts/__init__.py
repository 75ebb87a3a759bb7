"""Token-level mixture of experts with an exact anchor: packages, registry, routing, dispatch.

The public names; each is imported from its module when it is first used, so that `builder experts --help`
does not pay for torch. docs/experts.md is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from builder.errors import MissingExtraError

if TYPE_CHECKING:
    from builder.experts.configuration import RoutedConfig
    from builder.experts.equivalence import assert_tensors_equivalent
    from builder.experts.feature_extractors import (
        IdentityRouterFeatureExtractor,
        RouterFeatureExtractor,
        UnitRmsRouterFeatureExtractor,
        register_feature_extractor,
    )
    from builder.experts.materialize import LowRankDeltaModule, anchor_sha256
    from builder.experts.metadata import (
        AnchorDeltas,
        AnchoredTop1,
        Features,
        HierarchicalPairs,
        LoraMerge,
        PairTop2,
    )
    from builder.experts.needle_model import NeedleCausalLM
    from builder.experts.package import ExpertBinding, ExpertPackage
    from builder.experts.payloads import FullMlp, LoraFactors, LowRankDelta
    from builder.experts.plot import plot_route_shares, route_shares
    from builder.experts.registry import ExpertRegistry
    from builder.experts.routed_mlp import RoutedMLP
    from builder.experts.routed_model import RoutedCausalLM
    from builder.experts.router_heads import AffineRouterHead
    from builder.experts.synchronize import SynchronizationReport
    from builder.experts.telemetry import RouteRecord, RouteSummary, RouteTelemetry
    from builder.experts.transformers_model import TransformersCausalLM

_MODULES = {
    "configuration": ("RoutedConfig",),
    "equivalence": ("assert_tensors_equivalent",),
    "feature_extractors": (
        "IdentityRouterFeatureExtractor",
        "RouterFeatureExtractor",
        "UnitRmsRouterFeatureExtractor",
        "register_feature_extractor",
    ),
    "materialize": ("LowRankDeltaModule", "anchor_sha256"),
    "metadata": ("AnchorDeltas", "AnchoredTop1", "Features", "HierarchicalPairs", "LoraMerge", "PairTop2"),
    "needle_model": ("NeedleCausalLM",),
    "package": ("ExpertBinding", "ExpertPackage"),
    "payloads": ("FullMlp", "LoraFactors", "LowRankDelta"),
    "plot": ("plot_route_shares", "route_shares"),
    "registry": ("ExpertRegistry",),
    "routed_mlp": ("RoutedMLP",),
    "routed_model": ("RoutedCausalLM",),
    "router_heads": ("AffineRouterHead",),
    "synchronize": ("SynchronizationReport",),
    "telemetry": ("RouteRecord", "RouteSummary", "RouteTelemetry"),
    "transformers_model": ("TransformersCausalLM",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AffineRouterHead",
    "AnchorDeltas",
    "AnchoredTop1",
    "ExpertBinding",
    "ExpertPackage",
    "ExpertRegistry",
    "Features",
    "FullMlp",
    "HierarchicalPairs",
    "IdentityRouterFeatureExtractor",
    "LoraFactors",
    "LoraMerge",
    "LowRankDelta",
    "LowRankDeltaModule",
    "NeedleCausalLM",
    "PairTop2",
    "RouteRecord",
    "RouteSummary",
    "RouteTelemetry",
    "RoutedCausalLM",
    "RoutedConfig",
    "RoutedMLP",
    "RouterFeatureExtractor",
    "SynchronizationReport",
    "TransformersCausalLM",
    "UnitRmsRouterFeatureExtractor",
    "anchor_sha256",
    "assert_tensors_equivalent",
    "plot_route_shares",
    "register_feature_extractor",
    "route_shares",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "torch":
            raise MissingExtraError("the experts library", "experts") from None
        raise
