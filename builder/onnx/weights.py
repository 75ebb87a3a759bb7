"""A container's tensors in float32, in the form in which the graph reads them.

Owns: decoding with the same bits on every machine, and what is joined or added beforehand: projections of one
input side by side, 1 on norms, the own lane on biases. Does not know: nodes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from builder.cact.codes import levels
from builder.cact.layout import GROUP, Kind
from builder.cact.reader import Container

Floats = npt.NDArray[np.float32]
OWN_LANE_LOGIT = 4.0
"""A layer reads and writes its own lane by default: +-4 before the sigmoid (0.98 against 0.02)."""
NORMS = ("norm_in", "q_norm", "k_norm", "post_attn_norm", "pre_hada_norm")
HADAMARD_MLP = ("d1", "d2", "b2", "d3", "d4", "w1a", "w1b", "w2a", "w2b", "w3a", "w3b", "cond_v", "cond_u")
WALSH_MLP = ("d1", "d2", "d3")


def tensor(container: Container, name: str) -> Floats:
    """Like `Container.tensor`, but rotated by sums and differences in a fixed order instead of by a BLAS."""
    record = container.record(name)
    if record.kind is not Kind.CQ:
        return container.tensor(name)
    rotated = levels(record.bits, container.codebooks)[container.codes(name)]
    groups = rotated.reshape(record.rows, -1, GROUP)
    groups *= container.norms(name)[..., None].astype(np.float32)
    half = 1
    while half < GROUP:
        low, high = np.moveaxis(groups.reshape(record.rows, -1, 2, half), 2, 0)
        groups = np.stack([low + high, low - high], axis=2)
        half *= 2
    weights = groups.reshape(record.rows, -1) * np.float32(1 / math.sqrt(GROUP))
    return np.ascontiguousarray(weights[:, : record.shape[1]])


def layer_weights(container: Container, layer: int) -> dict[str, Floats]:
    """All of one layer by the names of builder/onnx/layers.py, its hyper-connection included."""
    header = container.header

    def own(name: str) -> Floats:
        return tensor(container, f"layers.{layer}.{name}")

    found = {name: own(name) for name in ("out_proj", "attn_gate")}
    found |= {name: 1 + own(name) for name in NORMS}
    found |= {name: own(name) for name in (WALSH_MLP if header.generation == 2 else HADAMARD_MLP)}
    for name in ("w1a", "w2a", "w3a"):
        if name in found:
            found[name] = np.ascontiguousarray(found[name].T)  # K(z) = A' Z B
    found["qkv_gate"] = np.concatenate([own(f"{name}_proj") for name in ("q", "k", "v", "gate")])
    if header.qkv_conv_taps:
        found["qkv_taps"] = np.concatenate([own(f"{name}_taps") for name in "qkv"], axis=1)
    return found


def connection_weights(container: Container) -> list[dict[str, Floats]]:
    """The hyper-connection of each layer; the container stacks all layers in one tensor.

    Reading, writing and mixing stand side by side; the biases already say which lane is the layer's own.
    """
    header = container.header
    layers, lanes = header.layer_count, header.lane_count
    own_lane = np.eye(lanes, dtype=np.float32)[np.arange(layers) % lanes]  # (L, N)
    none = np.zeros((layers, lanes * lanes), np.float32)
    offsets: list[Floats] = [OWN_LANE_LOGIT * (2 * own_lane - 1), OWN_LANE_LOGIT * (own_lane - 1), none]
    parts: dict[str, list[Floats]] = {"phi": [], "a": [], "b": []}
    for name, offset in zip(("pre", "post", "res"), offsets, strict=True):
        biases = tensor(container, f"mhc_b_{name}").reshape(layers, -1) + offset
        parts["phi"].append(tensor(container, f"mhc_phi_{name}").reshape(layers, -1, lanes * header.d_model))
        parts["a"].append(np.repeat(tensor(container, f"mhc_a_{name}")[:, None], biases.shape[1], axis=1))
        parts["b"].append(biases)
    stacked = {name: np.concatenate(values, axis=1) for name, values in parts.items()}
    return [{name: values[layer] for name, values in stacked.items()} for layer in range(layers)]


def permutations(container: Container) -> dict[str, npt.NDArray[np.int64]]:
    """The two that every MLP of generation 3 uses; generation 2 has none."""
    names = [name for name in ("hada_p1", "hada_p2") if name in container]
    return {name: container.tensor(name).astype(np.int64) for name in names}
