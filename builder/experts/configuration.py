"""Which layers of a model are routed.

Owns: the choice of layers and its checks.
Does not know: the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import UsageError


@dataclass(frozen=True)
class RoutedConfig:
    """The shape that routing needs to know, and the choice of layers."""

    layer_count: int
    hidden_width: int
    converted_layers: tuple[int, ...] | None = None
    """Indices as the caller gave them; negative ones count from the end, None means every layer."""

    def __post_init__(self) -> None:
        for layer in self.converted_layers or ():
            if not -self.layer_count <= layer < self.layer_count:
                allowed = f"from {-self.layer_count} to {self.layer_count - 1}"
                raise UsageError(f"converted_layers: names layer {layer}, must be {allowed}")
        resolved = self.resolved_converted_layers
        if self.converted_layers is not None and len(resolved) != len(self.converted_layers):
            raise UsageError(f"converted_layers: is {self.converted_layers}, must name each layer once")
        if not resolved:
            raise UsageError("converted_layers: is empty, must name at least one layer")

    @property
    def resolved_converted_layers(self) -> tuple[int, ...]:
        """The routed layers, ascending, counted from the start."""
        if self.converted_layers is None:
            return tuple(range(self.layer_count))
        return tuple(sorted({layer % self.layer_count for layer in self.converted_layers}))
