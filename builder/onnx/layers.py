"""The parts of a Needle model as ONNX nodes, in the order and with the names of builder/reference/layers.py.

Owns: the maths of one layer, both generations. Does not know: containers, names of inputs and outputs.
Letters: T new tokens, P past tokens, D d_model, N lanes, H query heads, G key/value heads, Q and V their head
dimensions, M hada_n, E engram width, K taps. There is no batch axis: a graph answers one text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from builder.cact.header import Header
from builder.cact.order import hada_blocks
from builder.onnx.graph import FLOAT, Value

NORM_EPSILON = 1e-6
SINKHORN_ROUNDS = 20
HASH_SEED, HASH_PRIME = 0x9E3779B9, 0x01000193
WORD_COUNT = 1 << 32
"""Hashes are words of 32 bits; ONNX shifts and cuts none of a signed type, so both are divisions."""
ENGRAM_TENSORS = ("tables", "key_proj", "value_proj", "taps")
Weights = Mapping[str, Value]


class Remembered(NamedTuple):
    """A result, and what the next call must be given."""

    result: Value
    past: Value


@dataclass(frozen=True)
class Positions:
    """Where the new tokens stand."""

    cos: Value
    """(T, 1, Q/2)."""
    sin: Value
    hidden: Value
    """(T, P + T): 0 where a token may look, minus infinity elsewhere."""
    hidden_near: Value
    """The same within the layer's window."""


@dataclass(frozen=True)
class AttentionPast:
    """What attention remembers."""

    keys: Value
    """(G, P, Q), after taps, norm and RoPE."""
    values: Value
    """(G, P, V), after taps."""
    raw: Value | None
    """(K - 1, H Q + G Q + G V): raw q, k, v projections of the last tokens; None without taps."""


def linear(x: Value, weight: Value) -> Value:
    """(T, in) and (out, in) -> (T, out)."""
    return x.graph.op("Gemm", x, weight, transB=1)


def sigmoid(x: Value) -> Value:
    """The logistic function."""
    return x.graph.op("Sigmoid", x)


def unit_rms(x: Value) -> Value:
    """x divided by its root mean square over the last axis."""
    squares = x.graph.op("Pow", x, 2.0)
    return x / x.graph.op("Sqrt", squares.mean(-1, keep=True) + NORM_EPSILON)


def norm(x: Value, scale: Value) -> Value:
    """RMS norm; the stored scale already has 1 added."""
    return unit_rms(x) * scale


def causal_taps(x: Value, taps: Value, past: Value | None, tap_count: int, dilation: int = 1) -> Remembered:
    """Depthwise causal convolution; tap j looks j * dilation tokens back. x: (T, C), taps: (K, C)."""
    rows = taps.split(0, [1] * tap_count) if tap_count > 1 else [taps]  # (1, C) each
    if past is None:
        return Remembered(x * rows[0], x)
    reach = (tap_count - 1) * dilation
    window = x.graph.op("Concat", past, x, axis=0)  # (reach + T, C)
    out = x * rows[0]
    for j, row in enumerate(rows[1:], 1):
        out = out + window.sliced(0, reach - j * dilation, -j * dilation) * row
    return Remembered(out, window.sliced(0, -reach))


def rotate(x: Value, positions: Positions, half: int) -> Value:
    """RoPE over the whole head, pairs (i, i + Q/2). x: (T, heads, Q)."""
    a, b = x.split(2, [half, half])
    turned = (a * positions.cos - b * positions.sin, b * positions.cos + a * positions.sin)
    return x.graph.op("Concat", *turned, axis=2)


def attention(
    x: Value, w: Weights, header: Header, positions: Positions, past: AttentionPast, *, everywhere: bool
) -> tuple[Value, AttentionPast]:
    """(T, D) -> (T, D), and the memory with these tokens in it."""
    heads, groups = header.head_count, header.kv_head_count
    q_dim, k_dim = heads * header.qk_head_dim, groups * header.qk_head_dim
    v_dim, out_dim = groups * header.v_head_dim, heads * header.v_head_dim
    projected, gate = linear(x, w["qkv_gate"]).split(1, [q_dim + k_dim + v_dim, out_dim])
    raw = past.raw
    if header.qkv_conv_taps:
        projected, kept = causal_taps(projected, w["qkv_taps"], raw, header.qkv_conv_taps)
        raw = None if raw is None else kept
    q, k, v = projected.split(1, [q_dim, k_dim, v_dim])
    half = header.qk_head_dim // 2
    q = rotate(norm(q.reshaped(0, heads, -1), w["q_norm"]), positions, half)  # (T, H, Q)
    k = rotate(norm(k.reshaped(0, groups, -1), w["k_norm"]), positions, half)  # (T, G, Q)
    k, v = k.transposed(1, 0, 2), v.reshaped(0, groups, -1).transposed(1, 0, 2)
    keys = x.graph.op("Concat", past.keys, k, axis=1)  # (G, P + T, Q)
    values = x.graph.op("Concat", past.values, v, axis=1)  # (G, P + T, V)

    q = q.reshaped(0, groups, heads // groups, -1).transposed(1, 2, 0, 3)  # (G, H/G, T, Q)
    columns = keys.reshaped(groups, 1, -1, header.qk_head_dim).transposed(0, 1, 3, 2)  # (G, 1, Q, P + T)
    scores = q @ columns / math.sqrt(header.qk_head_dim)  # (G, H/G, T, P + T)
    scores = scores + (positions.hidden if everywhere else positions.hidden_near)
    mixed = x.graph.op("Softmax", scores, axis=-1) @ values.reshaped(groups, 1, -1, header.v_head_dim)
    mixed = mixed.transposed(2, 0, 1, 3).reshaped(0, out_dim)  # (T, H * V)
    return linear(mixed * sigmoid(gate), w["out_proj"]), AttentionPast(keys, values, raw)


def kronecker(z: Value, a: Value, b: Value, sizes: tuple[int, int]) -> Value:
    """A Z B for each row of z (T, M), read as a matrix Z of these sizes."""
    return (a @ z.reshaped(0, *sizes) @ b).reshaped(0, sizes[0] * sizes[1])


def hadamard_mlp(x: Value, w: Weights, header: Header) -> Value:
    """(T, D) -> (T, D): the MLP of generation 3."""
    graph, sizes = x.graph, hada_blocks(header.hada_n)
    condition = graph.op("Softmax", x @ w["cond_v"], axis=-1) @ w["cond_u"] + 1.0  # (T, M)
    z = kronecker(_padded(x, header) * w["d1"], w["w1a"], w["w1b"], sizes)
    z = graph.op("Gather", z, w["hada_p1"], axis=1)
    z = _silu(condition * w["d2"] * z + w["b2"])
    z = graph.op("Gather", kronecker(z, w["w2a"], w["w2b"], sizes), w["hada_p2"], axis=1)
    z = kronecker(z * w["d3"], w["w3a"], w["w3b"], sizes) * w["d4"]
    return z.sliced(1, 0, header.d_model)


def walsh_mlp(x: Value, w: Weights, header: Header) -> Value:
    """(T, D) -> (T, D): the MLP of generation 2; its transform is the product of two smaller ones."""
    sizes = hada_blocks(header.hada_n)
    a, b = (x.graph.constant(walsh_matrix(size)) for size in sizes)
    z = _silu(kronecker(_padded(x, header) * w["d1"], a, b, sizes) * w["d2"])
    return (kronecker(z, a, b, sizes) * w["d3"]).sliced(1, 0, header.d_model)


def walsh_matrix(size: int) -> npt.NDArray[np.float32]:
    """Sylvester's matrix of signs over the root of its size."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix / math.sqrt(size)).astype(np.float32)


def _padded(x: Value, header: Header) -> Value:
    missing = header.hada_n - header.d_model
    return x.graph.op("Pad", x, np.array([0, 0, 0, missing], np.int64)) if missing else x


def _silu(x: Value) -> Value:
    return x * sigmoid(x)


def engram_slots(window: Value, position: Value, header: Header) -> tuple[Value, Value]:
    """Row of each table (T, tables) i64, and 1 where the whole n-gram exists (T, tables, 1), else 0.

    window: (max(orders) - 1 + T,) i64, ids before the new ones and the new ones; position: (T,) i64.
    """
    graph, reach, heads = window.graph, max(header.orders) - 1, header.engram_heads
    stride = header.engram_seed_heads or heads
    hashes = []
    for order_index, order in enumerate(header.orders):
        seeds = [HASH_SEED * (order_index * stride + head + 1) % WORD_COUNT for head in range(heads)]
        hashed: Value | None = None
        for back in range(order):
            ids = window.sliced(0, reach - back, -back or None)  # (T,)
            before = graph.constant(np.array(seeds, np.int64)[:, None]) if hashed is None else hashed
            hashed = (before ^ ids) * np.array(HASH_PRIME, np.int64) % np.array(WORD_COUNT, np.int64)
        assert hashed is not None
        hashes.append(hashed ^ hashed / np.array(1 << 15, np.int64))  # (heads, T)
    hashed = graph.op("Concat", *hashes, axis=0).transposed(1, 0)  # (T, tables)
    first_rows = np.arange(header.engram_table_count, dtype=np.int64) * header.engram_slots
    rows = hashed % np.array(header.engram_slots, np.int64) + first_rows
    needed = np.repeat(np.array(header.orders, np.int64) - 1, heads)  # (tables,)
    known = graph.op("Cast", position.reshaped(-1, 1) >= needed, to=FLOAT)
    return rows, known.reshaped(0, 0, 1)


def engram(
    slots: tuple[Value, Value], w: Weights, header: Header, past: Value | None
) -> tuple[Value, Remembered]:
    """Keys (T, D), values (T, D) and the memory, from `engram_slots`."""
    rows, known = slots
    looked_up = rows.graph.op("Gather", w["tables"], rows, axis=0) * known  # (T, tables, sub_dim)
    looked_up = looked_up.reshaped(0, header.engram_table_count * header.engram_sub_dim)  # (T, E)
    values = linear(looked_up, w["value_proj"])
    tapped = causal_taps(values, w["taps"], past, header.engram_conv_taps, header.engram_dilation)
    return linear(looked_up, w["key_proj"]), tapped


def engram_gate(x: Value, keys: Value, d_model: int) -> Value:
    """How much of an engram's value each token takes: (T, 1) in 0..1."""
    return sigmoid((unit_rms(x) * unit_rms(keys)).mean(-1, keep=True) * math.sqrt(d_model))


class HyperConnection:
    """N residual lanes: how a layer reads them, writes to them, and how they mix.

    `phi` (N + N + N * N, N * D), `a` and `b` are those of reading, writing and mixing side by side.
    """

    def __init__(self, streams: Value, w: Weights, header: Header) -> None:
        lanes = header.lane_count
        self._streams = streams  # (T, N, D)
        flat = unit_rms(streams.reshaped(0, lanes * header.d_model))  # (T, N * D)
        logits = linear(flat, w["phi"]) * w["a"] + w["b"]
        read, write, mix = logits.split(1, [lanes, lanes, lanes * lanes])
        self._read = sigmoid(read).reshaped(0, 1, lanes)
        self._write = (sigmoid(write) * 2.0).reshaped(0, lanes, 1)
        mix = mix.reshaped(0, lanes, lanes)
        for _ in range(SINKHORN_ROUNDS):  # towards rows and columns that sum to 1
            mix = mix.graph.op("LogSoftmax", mix, axis=2)
            mix = mix.graph.op("LogSoftmax", mix, axis=1)
        self._mix = mix.graph.op("Exp", mix)  # (T, N, N)

    def read(self, d_model: int) -> Value:
        """The layer's input (T, D)."""
        return (self._read @ self._streams).reshaped(0, d_model)

    def write(self, change: Value, d_model: int) -> Value:
        """The new lanes (T, N, D) after the layer added `change` (T, D)."""
        return self._mix @ self._streams + self._write * change.reshaped(0, 1, d_model)
