"""The parts of a Needle model in plain PyTorch: norms, taps, attention, MLP, engram, hyper-connection.

Owns: the maths of one layer, float32, written to be read beside docs/reference.md. Each part that looks back
takes what it must remember of earlier tokens (`past`) and returns the new memory; memories are never changed
in place, so keeping an old one costs nothing.
Does not know: containers, tokenizers, sampling, which layer it stands in.
Source: `needle/model/architecture.py` of cactus-needle 3.2.8 with `quant=False`.

Letters: B batch, T new tokens, P past tokens, D d_model, N lanes, H query heads, G key/value heads, Q and V
their head dimensions, M hada_n, E engram width (tables * sub_dim).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-6
SINKHORN_ROUNDS = 20
HASH_SEED = 0x9E3779B9
HASH_PRIME = 0x01000193
WORD_MASK = 0xFFFFFFFF
OWN_LANE_LOGIT = 4.0
"""A layer reads and writes its own lane by default: +-4 before the sigmoid (0.98 against 0.02)."""


def unit_rms(x: Tensor) -> Tensor:
    """x divided by its root mean square over the last axis."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON)


class ZeroCentredNorm(nn.Module):
    """RMS norm whose stored scale 0 means "as it is"."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        return (1 + self.scale) * unit_rms(x)


def split_heads(x: Tensor, head_count: int) -> Tensor:
    """(..., heads * C) -> (..., heads, C)."""
    return x.reshape(*x.shape[:-1], head_count, -1)


def causal_taps(x: Tensor, taps: Tensor, past: Tensor, dilation: int = 1) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution; tap j looks j * dilation tokens back, and there is zero before the start.

    x: (B, T, C), taps: (K, C), past: (B, (K-1) * dilation, C), the inputs before x. Returns the output (B,
    T, C) and the past for the next call.
    """
    reach = past.shape[1]
    window = torch.cat([past, x], dim=1)  # (B, reach + T, C)
    length = x.shape[1]
    out = torch.zeros_like(x)
    for j in range(taps.shape[0]):
        start = reach - j * dilation
        out = out + taps[j] * window[:, start : start + length]
    return out, window[:, length:]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE over the whole head, pairs (i, i + Q/2). x: (B, T, heads, Q); cos, sin: (T, Q/2)."""
    a, b = x.chunk(2, dim=-1)  # (B, T, heads, Q/2) each
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


@dataclass(frozen=True)
class AttentionPast:
    """What attention remembers: all keys and values so far, and the last raw projections for the taps."""

    keys: Tensor
    """(B, P, G, Q), after taps, norm and RoPE."""
    values: Tensor
    """(B, P, G, V), after taps."""
    raw: tuple[Tensor, Tensor, Tensor]
    """Raw q, k, v projections of the last K-1 tokens, (B, K-1, channels) each."""


@dataclass(frozen=True)
class Positions:
    """Where the new tokens stand: the rotation of each, and which past and new tokens each may see."""

    cos: Tensor
    """(T, Q/2)."""
    sin: Tensor
    visible: Tensor
    """(T, P + T) bool: causal."""
    visible_near: Tensor
    """(T, P + T) bool: causal and within the window; in generation 2 also the pinned first tokens."""


class GatedAttention(nn.Module):
    """Grouped-query attention with taps on q, k, v, normed heads, RoPE and an output gate."""

    def __init__(
        self, weights: dict[str, Tensor], head_count: int, kv_head_count: int, *, everywhere: bool
    ) -> None:
        super().__init__()
        self.head_count, self.kv_head_count, self.everywhere = head_count, kv_head_count, everywhere
        self.q_proj, self.k_proj, self.v_proj = (nn.Parameter(weights[f"{n}_proj"]) for n in "qkv")
        self.gate_proj, self.out_proj = nn.Parameter(weights["gate_proj"]), nn.Parameter(weights["out_proj"])
        self.q_norm, self.k_norm = ZeroCentredNorm(weights["q_norm"]), ZeroCentredNorm(weights["k_norm"])
        one_tap = {n: torch.ones(1, weights[f"{n}_proj"].shape[0]) for n in "qkv"}
        self.q_taps, self.k_taps, self.v_taps = (
            nn.Parameter(weights.get(f"{n}_taps", one_tap[n])) for n in "qkv"
        )

    def empty_past(self, batch: int) -> AttentionPast:
        """The memory before the first token."""
        zeros = self.q_proj.new_zeros
        key_dim = self.k_proj.shape[0] // self.kv_head_count
        value_dim = self.v_proj.shape[0] // self.kv_head_count
        raw_q, raw_k, raw_v = (
            zeros(batch, taps.shape[0] - 1, taps.shape[1]) for taps in (self.q_taps, self.k_taps, self.v_taps)
        )
        return AttentionPast(
            zeros(batch, 0, self.kv_head_count, key_dim),
            zeros(batch, 0, self.kv_head_count, value_dim),
            (raw_q, raw_k, raw_v),
        )

    def forward(self, x: Tensor, positions: Positions, past: AttentionPast) -> tuple[Tensor, AttentionPast]:
        """(B, T, D) -> (B, T, D) and the memory with these tokens in it."""
        q, raw_q = causal_taps(functional.linear(x, self.q_proj), self.q_taps, past.raw[0])  # (B, T, H*Q)
        k, raw_k = causal_taps(functional.linear(x, self.k_proj), self.k_taps, past.raw[1])  # (B, T, G*Q)
        v, raw_v = causal_taps(functional.linear(x, self.v_proj), self.v_taps, past.raw[2])  # (B, T, G*V)

        q = self.q_norm(split_heads(q, self.head_count))  # (B, T, H, Q)
        k = self.k_norm(split_heads(k, self.kv_head_count))  # (B, T, G, Q)
        q, k = rotate(q, positions.cos, positions.sin), rotate(k, positions.cos, positions.sin)
        keys = torch.cat([past.keys, k], dim=1)  # (B, P+T, G, Q)
        values = torch.cat([past.values, split_heads(v, self.kv_head_count)], dim=1)  # (B, P+T, G, V)

        # Query head h reads key/value head h // (H/G); r runs over the H/G heads that share one.
        q = q.reshape(*q.shape[:2], self.kv_head_count, -1, q.shape[-1])  # (B, T, G, H/G, Q)
        scores = torch.einsum("btgrq,bpgq->bgrtp", q, keys) / math.sqrt(q.shape[-1])  # (B, G, H/G, T, P+T)
        visible = positions.visible if self.everywhere else positions.visible_near
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        mixed = torch.einsum("bgrtp,bpgv->btgrv", weights, values).flatten(2)  # (B, T, H*V)

        gated = mixed * torch.sigmoid(functional.linear(x, self.gate_proj))  # (B, T, H*V)
        out = functional.linear(gated, self.out_proj)  # (B, T, D)
        return out, AttentionPast(keys, values, (raw_q, raw_k, raw_v))


class HadamardMLP(nn.Module):
    """Three learned Kronecker products with diagonals between them; `p1`, `p2` shuffle in between.

    Generation 3 only. The product K(z) = A' Z B with z read as a matrix Z of shape (a, b), a * b = M.
    """

    TENSORS = ("d1", "d2", "b2", "d3", "d4", "w1a", "w1b", "w2a", "w2b", "w3a", "w3b", "cond_v", "cond_u")
    d1: Tensor
    d2: Tensor
    b2: Tensor
    d3: Tensor
    d4: Tensor
    w1a: Tensor
    w1b: Tensor
    w2a: Tensor
    w2b: Tensor
    w3a: Tensor
    w3b: Tensor
    cond_v: Tensor
    cond_u: Tensor
    p1: Tensor
    p2: Tensor

    def __init__(self, weights: dict[str, Tensor], p1: Tensor, p2: Tensor) -> None:
        super().__init__()
        for name in self.TENSORS:
            self.register_parameter(name, nn.Parameter(weights[name]))
        self.register_buffer("p1", p1)
        self.register_buffer("p2", p2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        condition = 1 + (x @ self.cond_v).softmax(-1) @ self.cond_u  # (B, T, 8) -> (B, T, M)
        z = functional.pad(x, (0, self.d1.shape[0] - x.shape[-1]))  # (B, T, M)
        z = self._kronecker(self.d1 * z, self.w1a, self.w1b)[..., self.p1]
        z = functional.silu(self.d2 * condition * z + self.b2)
        z = self._kronecker(z, self.w2a, self.w2b)[..., self.p2]
        z = self._kronecker(self.d3 * z, self.w3a, self.w3b)
        return (self.d4 * z)[..., : x.shape[-1]]  # (B, T, D)

    @staticmethod
    def _kronecker(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        matrix = z.reshape(*z.shape[:-1], a.shape[0], b.shape[0])  # (B, T, a, b)
        product: Tensor = a.T @ matrix @ b
        return product.flatten(-2)  # (B, T, M)


@dataclass(frozen=True)
class EngramPast:
    """What an engram site remembers: the last raw value rows, (B, (K-1) * dilation, D)."""

    raw_values: Tensor


class Engram(nn.Module):
    """Keys and values looked up by a hash of the last few token ids: no attention, no position."""

    def __init__(
        self, weights: dict[str, Tensor], orders: Sequence[int], seed_heads: int, dilation: int, slots: int
    ):
        super().__init__()
        sub_dim = weights["tables"].shape[-1]
        self.tables = nn.Parameter(weights["tables"].reshape(-1, slots, sub_dim))  # (tables, slots, sub_dim)
        self.key_proj, self.value_proj = (
            nn.Parameter(weights["key_proj"]),
            nn.Parameter(weights["value_proj"]),
        )
        self.taps = nn.Parameter(weights["taps"])
        self.orders, self.seed_heads, self.dilation = tuple(orders), seed_heads, dilation

    def empty_past(self, batch: int) -> EngramPast:
        """The memory before the first token."""
        reach = (self.taps.shape[0] - 1) * self.dilation
        return EngramPast(self.taps.new_zeros(batch, reach, self.taps.shape[1]))

    def forward(self, window: Tensor, start: int, past: EngramPast) -> tuple[Tensor, Tensor, EngramPast]:
        """Keys (B, T, D), values (B, T, D), and the memory.

        window: (B, max(orders) - 1 + T) int64, the ids before the new ones (0 before the start) and the new
        ones. start: position of the first new token.
        """
        looked_up = self._look_up(window, start)  # (B, T, E)
        keys = functional.linear(looked_up, self.key_proj)  # (B, T, D)
        values, raw = causal_taps(
            functional.linear(looked_up, self.value_proj), self.taps, past.raw_values, self.dilation
        )
        return keys, values, EngramPast(raw)

    def _look_up(self, window: Tensor, start: int) -> Tensor:
        reach = max(self.orders) - 1
        length = window.shape[1] - reach
        heads, slots = self.tables.shape[0] // len(self.orders), self.tables.shape[1]
        position = torch.arange(start, start + length, device=window.device)  # (T,)
        rows = []
        for order_index, order in enumerate(self.orders):
            known = (position >= order - 1)[:, None]  # (T, 1): all ids of the n-gram exist
            for head in range(heads):
                seed = HASH_SEED * (order_index * (self.seed_heads or heads) + head + 1) & WORD_MASK
                hashed = torch.full_like(window[:, reach:], seed)  # (B, T)
                for back in range(order):
                    hashed = (
                        hashed ^ window[:, reach - back : reach - back + length]
                    ) * HASH_PRIME & WORD_MASK
                hashed = hashed ^ (hashed >> 15)
                rows.append(
                    self.tables[order_index * heads + head][hashed % slots] * known
                )  # (B, T, sub_dim)
        return torch.cat(rows, dim=-1)


def engram_gate(x: Tensor, keys: Tensor) -> Tensor:
    """How much of an engram's value each token takes: (B, T, 1) in 0..1."""
    agreement = (unit_rms(x) * unit_rms(keys)).sum(-1, keepdim=True) / math.sqrt(x.shape[-1])
    return torch.sigmoid(agreement)


class HyperConnection(nn.Module):
    """N residual lanes instead of one: how a layer reads them, writes to them, and how they mix."""

    TENSORS = ("a_pre", "a_post", "a_res", "b_pre", "b_post", "b_res", "phi_pre", "phi_post", "phi_res")
    a_pre: Tensor
    a_post: Tensor
    a_res: Tensor
    b_pre: Tensor
    b_post: Tensor
    b_res: Tensor
    phi_pre: Tensor
    phi_post: Tensor
    phi_res: Tensor
    own_lane: Tensor

    def __init__(self, weights: dict[str, Tensor], lane: int) -> None:
        super().__init__()
        for name in self.TENSORS:
            self.register_parameter(name, nn.Parameter(weights[name]))
        own_lane = functional.one_hot(torch.tensor(lane), len(weights["b_pre"])).float()
        self.register_buffer("own_lane", own_lane)  # (N,)

    def read(self, flat: Tensor, streams: Tensor) -> Tensor:
        """The layer's input (B, T, D). streams: (B, T, N, D); flat: (B, T, N*D), `unit_rms` of them all."""
        bias = self.b_pre + OWN_LANE_LOGIT * (2 * self.own_lane - 1)
        share = torch.sigmoid(self.a_pre * functional.linear(flat, self.phi_pre) + bias)  # (B, T, N)
        return torch.einsum("btn,btnd->btd", share, streams)

    def write(self, flat: Tensor, streams: Tensor, change: Tensor) -> Tensor:
        """The new lanes (B, T, N, D) after the layer added `change` (B, T, D); `flat` as given to `read`."""
        bias = self.b_post + OWN_LANE_LOGIT * (self.own_lane - 1)
        share = 2 * torch.sigmoid(self.a_post * functional.linear(flat, self.phi_post) + bias)  # (B, T, N)
        mix = functional.linear(flat, self.phi_res)  # (B, T, N*N)
        mix = self.a_res * mix.reshape(*mix.shape[:-1], *self.b_res.shape) + self.b_res  # (B, T, N, N)
        for _ in range(SINKHORN_ROUNDS):  # towards rows and columns that sum to 1
            mix = mix - mix.logsumexp(-1, keepdim=True)
            mix = mix - mix.logsumexp(-2, keepdim=True)
        mixed = torch.einsum("btij,btjd->btid", mix.exp(), streams)  # row i: how the old lanes make lane i
        return mixed + share[..., None] * change[:, :, None, :]
