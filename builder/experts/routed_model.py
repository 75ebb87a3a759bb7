"""The causal language model that owns a registry: install, unload, synchronise, run.

Owns: the frozen base, its routed layers, the registry, and what a pass sees of them.
Does not know: what kind of model the base is (transformers_model.py, needle_model.py).
Source: docs/experts.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from torch import nn

from builder.errors import UsageError
from builder.experts.admission import Limits, check_ids
from builder.experts.compilation import stays_in_python
from builder.experts.configuration import RoutedConfig
from builder.experts.package import ExpertPackage
from builder.experts.registry import ExpertRegistry
from builder.experts.routed_mlp import RoutedMLP
from builder.experts.runtime_board import ModelRuntime, RuntimeBoard
from builder.experts.synchronize import SynchronizationReport, synchronize
from builder.experts.telemetry import INVOCATIONS_MAX, RouteTelemetry


class RoutedCausalLM(nn.Module):
    """A frozen base whose chosen MLPs are routed. Subclasses say how to find the MLPs and how to generate.

    The base is changed in place: each chosen layer's `mlp` becomes a `RoutedMLP` around it.
    """

    def __init__(self, base_model: nn.Module, blocks: Mapping[int, nn.Module], config: RoutedConfig) -> None:
        super().__init__()
        self.base_model = base_model.requires_grad_(False)
        self.config = config
        self.registry = ExpertRegistry()
        empty = ModelRuntime({}, self.registry.snapshot().registry_sha256)
        self.board = RuntimeBoard(empty)
        for layer_index in config.resolved_converted_layers:
            block = blocks[layer_index]
            if isinstance(block.mlp, RoutedMLP):
                raise UsageError(f"base model: layer {layer_index}: is routed already, must be a plain model")
            block.mlp = RoutedMLP(cast(nn.Module, block.mlp), layer_index=layer_index, board=self.board)

    @property
    def routed_layers(self) -> dict[int, RoutedMLP]:
        """The routed MLPs by layer, ascending."""
        found = (module for module in self.base_model.modules() if isinstance(module, RoutedMLP))
        return {mlp.layer_index: mlp for mlp in found if mlp.layer_index is not None}

    def install(self, package: ExpertPackage) -> int:
        """Make a package active and return its slot; the forward path waits for `synchronize_registry`.

        Raises PackageError (package_installed).
        """
        return self.registry.install(package)

    def unload(self, identity: str) -> None:
        """Make a package inactive; its slot is kept for it. The forward path stays as it is.

        Raises PackageError (package_not_installed).
        """
        self.registry.unload(identity)

    def synchronize_registry(
        self, *, record_routes: bool = False, invocations_max: int = INVOCATIONS_MAX
    ) -> SynchronizationReport:
        """Make the forward path follow the registry, in all routed layers at once.

        Passes that are in progress finish with what they began with. With `record_routes` every layer with
        experts gets a fresh recorder (`route_telemetry`). Raises PackageError; then nothing has changed.
        """
        return synchronize(
            self.registry.snapshot(),
            self.routed_layers,
            self.board,
            hidden_width=self.config.hidden_width,
            telemetry_invocations_max=invocations_max if record_routes else None,
        )

    @property
    def is_synchronized(self) -> bool:
        """Whether the forward path follows the registry as it is now."""
        return self.registry.snapshot().registry_sha256 == self.board.current.registry_sha256

    @property
    def synchronized_registry_sha256(self) -> str | None:
        """The registry that the forward path follows; None after a layer was configured directly."""
        return self.board.current.registry_sha256

    @property
    def route_telemetry(self) -> dict[int, RouteTelemetry]:
        """The recorders of the published runtime, by layer."""
        recorders = ((index, layer.route_telemetry) for index, layer in self.board.current.by_layer.items())
        return {index: recorder for index, recorder in recorders if recorder is not None}

    @contextmanager
    def holding_runtime(
        self,
        *,
        expert_availability: Mapping[str, bool] | None = None,
        expert_capacity: Mapping[str, int] | None = None,
    ) -> Iterator[None]:
        """All passes of this thread within the block see one runtime, whatever is synchronised meanwhile.

        Experts that are named in neither mapping are available without limit. Raises UsageError for an id
        that no routed layer has.
        """
        limits = None
        if expert_availability is not None or expert_capacity is not None:
            limits = Limits(expert_availability, expert_capacity)
        with self.board.reading(limits) as runtime:
            known = {expert_id for layer in runtime.by_layer.values() for expert_id in layer.expert_ids}
            check_ids(expert_availability or (), known, "expert_availability")
            check_ids(expert_capacity or (), known, "expert_capacity")
            yield

    @stays_in_python
    def forward(
        self,
        *arguments: Any,
        expert_availability: Mapping[str, bool] | None = None,
        expert_capacity: Mapping[str, int] | None = None,
        **named: Any,
    ) -> Any:
        """One pass of the base with the published experts; `input_ids=` and all else go to the base."""
        with self.holding_runtime(expert_availability=expert_availability, expert_capacity=expert_capacity):
            return self.run_base(*arguments, **named)

    def run_base(self, *arguments: Any, **named: Any) -> Any:
        """The base's own forward pass."""
        return self.base_model(*arguments, **named)
