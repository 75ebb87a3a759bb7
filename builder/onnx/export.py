"""From a container to an ONNX file: the whole model, with its memory as inputs and outputs.

Owns: names and shapes of inputs and outputs (docs/onnx.md), which part stands where, what is too large.
Does not know: the maths of a part (layers.py), files on disk, runtimes. Letters as in `layers.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from builder.cact.header import Header
from builder.cact.layout import Kind
from builder.cact.reader import Container
from builder.errors import ContainerError, refusal
from builder.onnx import layers, weights
from builder.onnx.graph import FLOAT, INTEGER, Array, Graph, Value
from builder.onnx.layers import AttentionPast, Positions, Weights

MODEL_BYTES_MAX = 2**31 - 2**24
"""Weights of one file: a protobuf message ends at 2 GiB, and nodes and names take less than the rest."""
TOKENS, SEEN, KNOWN = "tokens", "past", "past + tokens"
"""Axes that vary: new ids, tokens remembered so far, and both together."""


def export_model(container: Container) -> bytes:
    """The ONNX file's bytes. Raises `ContainerError` (cact_unsupported) where one such file is too small."""
    numbers = sum(math.prod(record.shape) for record in container.records if record.kind is not Kind.RAW)
    if 4 * numbers > MODEL_BYTES_MAX:
        found, allowed = f"{4 * numbers:,} bytes in float32", f"at most {MODEL_BYTES_MAX:,} for one ONNX file"
        message = refusal(container.subject, "weights", found=found, allowed=allowed)
        raise ContainerError(message, code="cact_unsupported")
    facts = {
        "source_sha256": hashlib.sha256(container.data).hexdigest(),
        "max_seq_len": str(container.header.max_seq_len),
    }
    description = f"Needle, generation {container.header.generation}; docs/onnx.md of saguaro explains it"
    return _build(container).serialised(description, facts)


def _build(container: Container) -> Graph:
    header, graph = container.header, Graph()
    ids = graph.input("ids", INTEGER, [TOKENS])
    logit_rows = graph.input("logit_rows", INTEGER, [1])
    pasts = [_attention_past(graph, header, layer) for layer in range(header.layer_count)]
    position, key_position = _places(ids, pasts[0].keys)
    positions = _positions(header, position, key_position)
    engrams = _engrams(container, ids, position)

    embedding = graph.weight("embedding", weights.tensor(container, "embedding"))  # (vocab, D)
    embedded = graph.op("Gather", embedding, ids).reshaped(0, 1, header.d_model)
    scale = np.full((header.lane_count, 1), math.sqrt(header.d_model), np.float32)
    streams = embedded * scale  # (T, N, D)
    connections = weights.connection_weights(container)
    shared = _held(graph, "", weights.permutations(container))
    for layer, past in enumerate(pasts):
        with graph.within(f"layers.{layer}"):
            values = weights.layer_weights(container, layer) | connections[layer]
            w = _held(graph, f"layers.{layer}.", values)
            streams = _layer(streams, w | shared, header, layer, engrams.get(layer), positions, past)
    with graph.within("readout"):
        final_norm = graph.weight("final_norm", 1 + weights.tensor(container, "final_norm"))
        logits = _readout(streams, embedding, final_norm, logit_rows, header)
    graph.output("logits", logits, FLOAT, ["logit_rows", header.logit_count])
    return graph


def _held(graph: Graph, prefix: str, values: Mapping[str, Array]) -> dict[str, Value]:
    return {name: graph.weight(prefix + name, value) for name, value in values.items()}


def _attention_past(graph: Graph, header: Header, layer: int) -> AttentionPast:
    groups, reach = header.kv_head_count, header.qkv_conv_taps - 1
    width = (header.head_count + groups) * header.qk_head_dim + groups * header.v_head_dim
    name = f"past.layers.{layer}"
    return AttentionPast(
        graph.input(f"{name}.keys", FLOAT, [groups, SEEN, header.qk_head_dim]),
        graph.input(f"{name}.values", FLOAT, [groups, SEEN, header.v_head_dim]),
        graph.input(f"{name}.raw", FLOAT, [reach, width]) if reach > 0 else None,
    )


def _places(ids: Value, past_keys: Value) -> tuple[Value, Value]:
    """Positions of the new tokens (T,) and of all (P + T,), i64."""
    graph, zero, one = ids.graph, np.array(0, np.int64), np.array(1, np.int64)
    start = past_keys.size(1)
    first, end = (graph.op("Squeeze", place) for place in (start, start + ids.size(0)))
    return graph.op("Range", first, end, one), graph.op("Range", zero, end, one)


def _positions(header: Header, position: Value, key: Value) -> Positions:
    graph = position.graph
    query = position.reshaped(-1, 1)
    visible = near = key <= query
    if header.generation == 2 and header.kv_window:
        pinned = graph.input("pinned", INTEGER, [1])
        near = visible & ((query - key < np.array(header.kv_window, np.int64)) | (key < pinned))
    elif header.sliding_window:
        near = visible & (query - key < np.array(header.sliding_window, np.int64))
    exponents = np.arange(0, header.qk_head_dim, 2, dtype=np.float64) / header.qk_head_dim
    frequencies = (1.0 / np.power(float(header.rope_theta), exponents)).astype(np.float32)
    angles = (graph.op("Cast", query, to=FLOAT) * frequencies).reshaped(0, 1, len(frequencies))  # (T, 1, Q/2)
    hidden, hidden_near = (graph.op("Where", seen, 0.0, -math.inf) for seen in (visible, near))
    return Positions(graph.op("Cos", angles), graph.op("Sin", angles), hidden, hidden_near)


def _engrams(container: Container, ids: Value, position: Value) -> dict[int, tuple[Value, Value]]:
    """Keys and values, (T, D) each, of every layer that is a site."""
    header, graph = container.header, ids.graph
    before = max(header.orders) - 1
    reach = (header.engram_conv_taps - 1) * header.engram_dilation
    found: dict[int, tuple[Value, Value]] = {}
    if not header.sites:
        return found
    window = ids
    if before:
        recent = graph.input("past.recent_ids", INTEGER, [before])
        window = graph.op("Concat", recent, ids, axis=0)
        graph.output("present.recent_ids", window.sliced(0, -before), INTEGER, [before])
    with graph.within("engrams"):
        slots = layers.engram_slots(window, position, header)
        for site, layer in enumerate(header.sites):
            name = f"engrams.{site}"
            past = graph.input(f"past.{name}", FLOAT, [reach, header.d_model]) if reach else None
            values = {part: weights.tensor(container, f"{name}.{part}") for part in layers.ENGRAM_TENSORS}
            keys, tapped = layers.engram(slots, _held(graph, f"{name}.", values), header, past)
            found[layer] = keys, tapped.result
            if reach:
                graph.output(f"present.{name}", tapped.past, FLOAT, [reach, header.d_model])
    return found


def _layer(
    streams: Value,
    w: Weights,
    header: Header,
    layer: int,
    engram: tuple[Value, Value] | None,
    positions: Positions,
    past: AttentionPast,
) -> Value:
    """Lanes (T, N, D) -> the new lanes; what the layer remembers becomes outputs."""
    graph = streams.graph
    connection = layers.HyperConnection(streams, w, header)
    x = y = connection.read(header.d_model)  # (T, D)
    if engram is not None:
        keys, values = engram
        y = y + layers.engram_gate(x, keys, header.d_model) * values
    everywhere = layer in header.global_layers
    inputs = layers.norm(y, w["norm_in"])
    attended, present = layers.attention(inputs, w, header, positions, past, everywhere=everywhere)
    y = y + layers.norm(attended, w["post_attn_norm"]) * layers.sigmoid(w["attn_gate"])
    mlp = layers.walsh_mlp if header.generation == 2 else layers.hadamard_mlp
    y = y + mlp(layers.norm(y, w["pre_hada_norm"]), w, header)

    name, groups = f"present.layers.{layer}", header.kv_head_count
    graph.output(f"{name}.keys", present.keys, FLOAT, [groups, KNOWN, header.qk_head_dim])
    graph.output(f"{name}.values", present.values, FLOAT, [groups, KNOWN, header.v_head_dim])
    if present.raw is not None:
        width = (header.head_count + groups) * header.qk_head_dim + groups * header.v_head_dim
        graph.output(f"{name}.raw", present.raw, FLOAT, [header.qkv_conv_taps - 1, width])
    return connection.write(y - x, header.d_model)


def _readout(streams: Value, embedding: Value, final_norm: Value, rows: Value, header: Header) -> Value:
    """Logits of the last `rows` tokens: (rows, logit_count)."""
    last = streams.sliced(0, rows * np.array(-1, np.int64))
    hidden = layers.norm(last.mean(1), final_norm)
    used = (
        embedding if header.logit_count == header.vocab_count else embedding.sliced(0, 0, header.logit_count)
    )
    return layers.linear(hidden, used)
