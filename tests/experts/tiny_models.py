"""Models and packages that are small enough to run in milliseconds and random enough to tell routes apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from builder.experts import (
    AffineRouterHead,
    AnchoredTop1,
    ExpertBinding,
    ExpertPackage,
    Features,
    FullMlp,
    LoraFactors,
    LowRankDelta,
    RoutedCausalLM,
)
from builder.experts.payloads import Payload

WIDTH, INNER, LAYERS, VOCAB, RANK = 16, 24, 3, 48, 2
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": None,
}


def llama(seed: int = 0, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval().to(dtype)


def qwen(seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()


def ids(count: int = 10, batch: int = 1, seed: int = 3) -> Tensor:
    return torch.randint(0, VOCAB, (batch, count), generator=torch.Generator().manual_seed(seed))


def random_heads(expert_ids: Sequence[str], width: int, generator: torch.Generator) -> list[AffineRouterHead]:
    return [
        AffineRouterHead(
            expert_id, torch.randn(width, generator=generator), torch.randn((), generator=generator)
        )
        for expert_id in expert_ids
    ]


def payload_for(anchor: nn.Module, kind: str, generator: torch.Generator) -> Payload:
    """A payload that fits the anchor and changes its output clearly."""

    def noise(*shape: int, like: Tensor) -> Tensor:
        return (0.5 * torch.randn(*shape, generator=generator)).to(like.dtype)

    named = dict(anchor.named_parameters())
    first = next(iter(named.values()))
    if kind == "low_rank_delta":
        down, up = noise(RANK, WIDTH, like=first), noise(WIDTH, RANK, like=first)
        return LowRankDelta({"down.weight": down, "up.weight": up}, "silu", 1.5)
    if kind == "lora":
        tensors = {}
        for target in ("gate_proj", "down_proj"):
            rows, columns = named[f"{target}.weight"].shape
            tensors[f"{target}.lora_a"] = noise(RANK, columns, like=first)
            tensors[f"{target}.lora_b"] = noise(rows, RANK, like=first)
        return LoraFactors(tensors, 2.0)
    return FullMlp({name: weight + noise(*weight.shape, like=weight) for name, weight in named.items()})


def package_for(
    model: RoutedCausalLM,
    name: str,
    expert_ids: Sequence[str],
    *,
    seed: int,
    kind: str = "full_mlp",
    layers: Sequence[int] | None = None,
    mode: Any = None,
    pairs: Sequence[tuple[str, str]] = (),
) -> ExpertPackage:
    """A package with these experts in each of the layers (all routed ones by default)."""
    generator = torch.Generator().manual_seed(seed)
    width = model.config.hidden_width
    payloads, bindings, heads, pair_heads = {}, [], {}, {}
    for layer in model.config.resolved_converted_layers if layers is None else layers:
        anchor = model.routed_layers[layer].anchor
        for number, expert_id in enumerate(expert_ids):
            payloads[f"p{layer}-{number}"] = payload_for(anchor, kind, generator)
            bindings.append(ExpertBinding(layer, expert_id, f"p{layer}-{number}"))
        heads[layer] = random_heads(expert_ids, width, generator)
        if pairs:
            named = random_heads(["+".join(pair) for pair in pairs], width, generator)
            pair_heads[layer] = dict(zip(pairs, named, strict=True))
    return ExpertPackage(
        name=name,
        features=Features(width=width),
        payloads=payloads,
        bindings=bindings,
        router_heads=heads,
        pair_heads=pair_heads,
        mode=AnchoredTop1() if mode is None else mode,
    )


class Scaled(nn.Module):
    """Multiplies by a whole number, so that results are exact, and counts its calls and tokens."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor, self.call_count, self.token_count = factor, 0, 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.call_count += 1
        self.token_count += hidden.shape[:-1].numel()
        return hidden * self.factor


class SmallMlp(nn.Module):
    """Two linear maps and a curve between them."""

    def __init__(self, width: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = (
            nn.Linear(width, 2 * width, dtype=dtype),
            nn.Linear(2 * width, width, dtype=dtype),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(hidden)))
