"""A Hugging Face causal LM as the base.

Owns: finding the MLPs of a `transformers` model that has one per decoder layer.
Does not know: packages, routes. `transformers` itself is not imported: whoever made the model did that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from builder.errors import UsageError
from builder.experts.configuration import RoutedConfig
from builder.experts.routed_model import RoutedCausalLM


class TransformersCausalLM(RoutedCausalLM):
    """`model(input_ids=...)` and `model.generate(...)` as the base has them, with routed MLPs.

    Works for models whose decoder layers stand in one list and have `.mlp`, a module (B, T, D) -> (B, T, D):
    Llama, Qwen, Mistral, Gemma, Phi, GPT-2, GPT-NeoX and their kin. Raises UsageError for others.
    """

    def __init__(self, base_model: nn.Module, *, converted_layers: Iterable[int] | None = None) -> None:
        base_config: Any = base_model.config
        blocks = _decoder_blocks(base_model, base_config.num_hidden_layers)
        chosen = None if converted_layers is None else tuple(converted_layers)
        config = RoutedConfig(base_config.num_hidden_layers, base_config.hidden_size, chosen)
        super().__init__(base_model, blocks, config)

    def generate(
        self,
        *arguments: Any,
        expert_availability: Mapping[str, bool] | None = None,
        expert_capacity: Mapping[str, int] | None = None,
        **named: Any,
    ) -> Any:
        """The base's `generate`; all of it sees one runtime. `use_cache=False` is the full-history path."""
        base: Any = self.base_model
        with (
            torch.no_grad(),
            self.holding_runtime(expert_availability=expert_availability, expert_capacity=expert_capacity),
        ):
            return base.generate(*arguments, **named)


def _decoder_blocks(base_model: nn.Module, layer_count: int) -> dict[int, nn.Module]:
    """The decoder layers by index: the one list of that length whose items all have an `mlp` module."""
    lists = [module for module in base_model.modules() if isinstance(module, nn.ModuleList)]
    fitting = [
        blocks
        for blocks in lists
        if len(blocks) == layer_count
        and all(isinstance(getattr(block, "mlp", None), nn.Module) for block in blocks)
    ]
    if len(fitting) != 1:
        found = f"{len(fitting)} lists of {layer_count} layers with an mlp each"
        raise UsageError(f"base model {type(base_model).__name__}: has {found}, must have one")
    return dict(enumerate(fitting[0]))
