"""A Needle model in float32 on the dequantised weights of a `.cact` container, of either generation.

Owns: which part stands where, and the forward pass from token ids to logits. This is the truth that the
engine is measured against; docs/reference.md says how exact it is.
Does not know: text, sampling, who asks.
Source: `needle/model/architecture.py` of cactus-needle 3.2.8 with `quant=False`; generation_2.py says what is
otherwise in generation 2. Letters as in `layers.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from builder.cact.reader import Container
from builder.reference.generation_2 import WalshMLP
from builder.reference.layers import (
    AttentionPast,
    Engram,
    EngramPast,
    GatedAttention,
    HadamardMLP,
    HyperConnection,
    Positions,
    ZeroCentredNorm,
    engram_gate,
    unit_rms,
)

EngramOutput = tuple[Tensor, Tensor]
"""Keys and values of one site for the new tokens, (B, T, D) each."""

NORM_TENSORS = ("norm_in", "post_attn_norm", "pre_hada_norm", "attn_gate")
ATTENTION_TENSORS = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "gate_proj", "out_proj")
TAP_TENSORS = ("q_taps", "k_taps", "v_taps")
ENGRAM_TENSORS = ("tables", "key_proj", "value_proj", "taps")


@dataclass(frozen=True)
class Past:
    """What the whole model remembers of the tokens so far; never changed in place."""

    position: int
    recent_ids: Tensor
    """(B, max(orders) - 1) int64; 0 before the start."""
    engrams: tuple[EngramPast, ...]
    blocks: tuple[AttentionPast, ...]
    pinned: int = 0
    """First tokens that those to come see beyond the KV window of generation 2 (generation 3 has none)."""


class Block(nn.Module):
    """One layer. `mlp` is any module (B, T, D) -> (B, T, D); everything else is fixed."""

    def __init__(
        self,
        connection: HyperConnection,
        attention: GatedAttention,
        mlp: nn.Module,
        weights: dict[str, Tensor],
    ) -> None:
        super().__init__()
        self.connection, self.attention, self.mlp = connection, attention, mlp
        self.input_norm = ZeroCentredNorm(weights["norm_in"])
        self.attention_norm = ZeroCentredNorm(weights["post_attn_norm"])
        self.mlp_norm = ZeroCentredNorm(weights["pre_hada_norm"])
        self.attention_gate = nn.Parameter(weights["attn_gate"])  # (1,)

    def forward(
        self, streams: Tensor, engram: EngramOutput | None, positions: Positions, past: AttentionPast
    ) -> tuple[Tensor, AttentionPast]:
        """Lanes (B, T, N, D) -> the new lanes (B, T, N, D), and the memory with these tokens in it."""
        flat = unit_rms(streams.flatten(2))  # (B, T, N*D)
        x = self.connection.read(flat, streams)  # (B, T, D)
        y = x
        if engram is not None:
            keys, values = engram
            y = y + engram_gate(x, keys) * values
        attended, past = self.attention(self.input_norm(y), positions, past)
        y = y + torch.sigmoid(self.attention_gate) * self.attention_norm(attended)
        y = y + self.mlp(self.mlp_norm(y))
        return self.connection.write(flat, streams, y - x), past


class NeedleModel(nn.Module):
    """Token ids (B, T) in, logits (B, T, logit_count) out."""

    rope_frequencies: Tensor

    def __init__(self, container: Container) -> None:
        super().__init__()
        header = container.header

        def group(prefix: str, names: tuple[str, ...]) -> dict[str, Tensor]:
            return {name: _tensor(container, prefix + name) for name in names}

        self.header = header
        self.embedding = nn.Parameter(_tensor(container, "embedding"))  # (vocab, D)
        self.engrams = nn.ModuleList(
            Engram(
                group(f"engrams.{site}.", ENGRAM_TENSORS),
                header.orders,
                header.engram_seed_heads,
                header.engram_dilation,
                header.engram_slots,
            )
            for site in range(len(header.sites))
        )
        connections = _connection_weights(container)
        make_mlp = _walsh_mlp if header.generation == 2 else _hadamard_mlp
        attention_names = ATTENTION_TENSORS + (TAP_TENSORS if header.qkv_conv_taps else ())
        self.layers = nn.ModuleList(
            Block(
                HyperConnection(connections[layer], layer % header.lane_count),
                GatedAttention(
                    group(f"layers.{layer}.", attention_names),
                    header.head_count,
                    header.kv_head_count,
                    everywhere=layer in header.global_layers,
                ),
                make_mlp(container, layer),
                group(f"layers.{layer}.", NORM_TENSORS),
            )
            for layer in range(header.layer_count)
        )
        self.final_norm = ZeroCentredNorm(_tensor(container, "final_norm"))
        exponents = np.arange(0, header.qk_head_dim, 2, dtype=np.float64) / header.qk_head_dim
        frequencies = (1.0 / np.power(float(header.rope_theta), exponents)).astype(np.float32)
        self.register_buffer("rope_frequencies", torch.from_numpy(frequencies))  # (Q/2,)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of every position, (B, T, logit_count) f32, from the full history: no cache is used."""
        streams, _ = self.extend(ids, self.empty_past(ids.shape[0]))
        return self.readout(streams)

    def empty_past(self, batch: int = 1) -> Past:
        """The memory before the first token."""
        return Past(
            position=0,
            recent_ids=torch.zeros(batch, max(self.header.orders) - 1, dtype=torch.int64),
            engrams=tuple(engram.empty_past(batch) for engram in self._engrams()),
            blocks=tuple(block.attention.empty_past(batch) for block in self.blocks()),
        )

    def extend(self, ids: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Lanes after the last layer (B, T, N, D) for the new ids (B, T), and the memory with them in it."""
        streams, engrams, recent_ids, engram_pasts = self.enter(ids, past)
        streams, block_pasts = self.run_layers(streams, engrams, past, 0, len(self.layers))
        return streams, replace(
            past,
            position=past.position + ids.shape[1],
            recent_ids=recent_ids,
            engrams=engram_pasts,
            blocks=block_pasts,
        )

    def enter(
        self, ids: Tensor, past: Past
    ) -> tuple[Tensor, tuple[EngramOutput, ...], Tensor, tuple[EngramPast, ...]]:
        """All that depends on token ids alone: lanes (B, T, N, D), each site's output, and their memories."""
        embedded = self.embedding[ids] * math.sqrt(self.header.d_model)  # (B, T, D)
        streams = embedded[:, :, None, :].expand(-1, -1, self.header.lane_count, -1)  # (B, T, N, D)
        window = torch.cat([past.recent_ids, ids], dim=1)  # (B, max(orders) - 1 + T)
        outputs, pasts = [], []
        for engram, engram_past in zip(self._engrams(), past.engrams, strict=True):
            keys, values, new_past = engram(window, past.position, engram_past)
            outputs.append((keys, values))
            pasts.append(new_past)
        return streams, tuple(outputs), window[:, ids.shape[1] :], tuple(pasts)

    def run_layers(
        self, streams: Tensor, engrams: tuple[EngramOutput, ...], past: Past, first: int, stop: int
    ) -> tuple[Tensor, tuple[AttentionPast, ...]]:
        """Lanes (B, T, N, D) through layers first..stop-1, and the memories of these layers."""
        positions = self._positions(past, streams.shape[1])
        at_layer = dict(zip(self.header.sites, engrams, strict=True))
        pasts = []
        for layer, block in list(enumerate(self.blocks()))[first:stop]:
            streams, block_past = block(streams, at_layer.get(layer), positions, past.blocks[layer])
            pasts.append(block_past)
        return streams, tuple(pasts)

    def cells(self, ids: Tensor) -> Tensor:
        """What the probe heads read, (B, T, L + 1, D): the embedding, then each layer's lane mean."""
        return self.extend_cells(ids, self.empty_past(ids.shape[0]))[0]

    def extend_cells(self, ids: Tensor, past: Past) -> tuple[Tensor, Past]:
        """The cells of the new ids (B, T), and the memory with them in it."""
        streams, engrams, recent_ids, engram_pasts = self.enter(ids, past)
        cells = [streams.mean(2)]
        blocks: list[AttentionPast] = []
        for layer in range(len(self.layers)):
            streams, memories = self.run_layers(streams, engrams, past, layer, layer + 1)
            cells.append(streams.mean(2))
            blocks.extend(memories)
        position = past.position + ids.shape[1]
        return torch.stack(cells, dim=2), Past(position, recent_ids, engram_pasts, tuple(blocks), past.pinned)

    def readout(self, streams: Tensor) -> Tensor:
        """Lanes (B, T, N, D) -> logits (B, T, logit_count)."""
        hidden = self.final_norm(streams.mean(2))  # (B, T, D)
        return functional.linear(hidden, self.embedding[: self.header.logit_count])

    def blocks(self) -> list[Block]:
        """`layers` with its element type."""
        return [cast(Block, block) for block in self.layers]

    def _engrams(self) -> list[Engram]:
        return [cast(Engram, engram) for engram in self.engrams]

    def _positions(self, past: Past, length: int) -> Positions:
        query = torch.arange(past.position, past.position + length)[:, None]  # (T, 1)
        key = torch.arange(past.position + length)[None, :]  # (1, P + T)
        visible = near = key <= query
        if self.header.generation == 2 and self.header.kv_window:
            near = visible & ((query - key < self.header.kv_window) | (key < past.pinned))
        elif self.header.sliding_window:
            near = visible & (query - key < self.header.sliding_window)
        angles = query.float() * self.rope_frequencies  # (T, Q/2)
        return Positions(angles.cos(), angles.sin(), visible, near)


def _tensor(container: Container, name: str) -> Tensor:
    return torch.from_numpy(container.tensor(name))


def _connection_weights(container: Container) -> list[dict[str, Tensor]]:
    """The hyper-connection tensors of each layer; the container stacks all layers in one tensor."""
    layer_count = container.header.layer_count
    stacked = {}
    for name in HyperConnection.TENSORS:
        tensor = _tensor(container, f"mhc_{name}")  # (L, ...), but phi: (L * rows, N*D)
        stacked[name] = tensor.reshape(layer_count, -1, tensor.shape[-1]) if "phi" in name else tensor
    return [{name: tensor[layer] for name, tensor in stacked.items()} for layer in range(layer_count)]


def _hadamard_mlp(container: Container, layer: int) -> nn.Module:
    weights = {name: _tensor(container, f"layers.{layer}.{name}") for name in HadamardMLP.TENSORS}
    p1, p2 = (_tensor(container, name).long() for name in ("hada_p1", "hada_p2"))
    return HadamardMLP(weights, p1, p2)


def _walsh_mlp(container: Container, layer: int) -> nn.Module:
    return WalshMLP({name: _tensor(container, f"layers.{layer}.{name}") for name in WalshMLP.TENSORS})
