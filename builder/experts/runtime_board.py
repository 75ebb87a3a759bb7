"""Where the runtime of all routed layers of a model is published, in one step.

Owns: the published runtime, the snapshot that a pass reads, the lock between writers.
Does not know: how a runtime is built, models.
Source: docs/experts.md, "Synchronisation".

A reader takes one reference to the whole runtime and keeps it for its pass; a writer replaces that reference.
So a pass sees the old runtime in all layers or the new one in all layers, and nobody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from builder.experts.admission import Limits
from builder.experts.layer_runtime import LayerRuntime

ExpertSource = tuple[str, str]
"""The identity of a package and the id of an expert in it."""


class ModelRuntime(nn.Module):
    """The runtimes of all layers; a layer that is not here runs its anchor. Never changed after it was built.

    `registry_sha256` names the registry snapshot that it was made from, None for a direct configuration;
    `packages` are that snapshot's identities, `sources` says of each layer whose experts it has.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerRuntime],
        registry_sha256: str | None,
        packages: tuple[str, ...] = (),
        sources: Mapping[int, tuple[ExpertSource, ...]] | None = None,
    ) -> None:
        super().__init__()
        self.by_layer = dict(layers)
        self.registered = nn.ModuleList(self.by_layer.values())  # for parameters(), to() and state_dict()
        self.registry_sha256, self.packages = registry_sha256, packages
        self.sources = dict(sources or {})

    def with_layer(self, layer_index: int, runtime: LayerRuntime | None) -> ModelRuntime:
        """The same but for one layer, which no package then accounts for."""
        layers = {index: layer for index, layer in self.by_layer.items() if index != layer_index}
        sources = {index: source for index, source in self.sources.items() if index != layer_index}
        if runtime is not None:
            layers[layer_index] = runtime
        return ModelRuntime(layers, None, self.packages, sources)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What one pass sees."""

    board: RuntimeBoard
    runtime: ModelRuntime
    limits: Limits


_snapshot: ContextVar[Snapshot | None] = ContextVar("expert_runtime_snapshot", default=None)


class RuntimeBoard(nn.Module):
    """One published `ModelRuntime` for the routed layers that share this board."""

    def __init__(self, runtime: ModelRuntime | None = None) -> None:
        super().__init__()
        self._modules["published"] = ModelRuntime({}, None) if runtime is None else runtime
        self.writing = threading.RLock()
        """Held by whoever replaces the runtime, from reading the old one to publishing the new one."""

    @property
    def current(self) -> ModelRuntime:
        """The published runtime."""
        return cast(ModelRuntime, self._modules["published"])

    def publish(self, runtime: ModelRuntime) -> None:
        """Replace the runtime for every pass that begins from now on: one assignment, never half done."""
        self._modules["published"] = runtime

    def seen_here(self) -> tuple[ModelRuntime, Limits]:
        """The snapshot of the pass in progress, or the published runtime outside of one."""
        snapshot = _snapshot.get()
        if snapshot is not None and snapshot.board is self:
            return snapshot.runtime, snapshot.limits
        return self.current, NO_LIMITS

    @contextmanager
    def reading(self, limits: Limits | None = None) -> Iterator[ModelRuntime]:
        """Hold one runtime for a pass, or for many. Within a pass of the same board its runtime stays."""
        runtime, outer = self.seen_here()
        token = _snapshot.set(Snapshot(self, runtime, outer if limits is None else limits))
        try:
            yield runtime
        finally:
            _snapshot.reset(token)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock, which cannot be copied."""
        return {name: value for name, value in self.__dict__.items() if name != "writing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.writing = threading.RLock()


NO_LIMITS = Limits()
