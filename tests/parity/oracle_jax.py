"""Oracle (a): upstream's JAX model on parameters that upstream's reader took from a `.cact` file.

Owns: the way back from a container to upstream's parameter tree, and one jitted forward pass per model.
Nothing of `builder` is used, so that a mistake in our reader cannot hide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from needle.model.architecture import HEADS, SimpleAttentionNetwork, TransformerConfig
from needle.model.export import read_export

MLP = ("d1", "d2", "b2", "d3", "d4", "w1a", "w1b", "w2a", "w2b", "w3a", "w3b", "cond_v", "cond_u")
HEAD_TENSORS = ("probes", "gain", "query", "row_bias", "proj", "bias")
PAD_ID = 0
LENGTH_STEP = 128


class JaxOracle:
    """One model. `split_permutations`: what a container does not say and upstream keeps in checkpoints.

    `few`: a few passes only, for which compiling with optimisation takes longer than it gains.
    """

    def __init__(
        self, path: Path, *, quant: bool = False, split_permutations: bool = False, few: bool = False
    ) -> None:
        geometry, tensors = read_export(path)
        self.config = _config(geometry, split_permutations)
        named = _by_name(geometry, tensors)
        self.params = _params(geometry, named)
        self._forward = _compiled(_hashable(self.config), quant, few)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (T, out_vocab) f32 of every position. Ids are padded, so that few lengths are compiled."""
        length = min(-(-len(ids) // LENGTH_STEP) * LENGTH_STEP, self.config.max_seq_len)
        padded = np.full((1, length), PAD_ID, np.int32)
        padded[0, : len(ids)] = ids
        return np.asarray(self._forward(self.params, jnp.asarray(padded)))[0, : len(ids)]

    def heads(self, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """What each probe head says of the tokens, (outputs,) f32; the confidence before its sigmoid."""

        def all_heads(model: SimpleAttentionNetwork, tokens: jax.Array) -> dict[str, jax.Array]:
            cells = model._head_cells(tokens)  # what upstream's `forward_*` give to their heads
            return {
                "embedding": model.embedding_head(*cells)[0],
                "confidence": model.confidence_head(*cells)[..., 0],
                "router": model.router_head(*cells),
            }

        model = SimpleAttentionNetwork(self.config)
        apply = jax.jit(lambda params, tokens: model.apply({"params": params}, tokens, method=all_heads))
        said = apply(self.params, jnp.asarray([ids], jnp.int32))
        return {name: np.atleast_1d(np.asarray(value)[0]) for name, value in said.items()}


def _hashable(config: TransformerConfig) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((key, value) for key, value in config.__dict__.items()))


@functools.cache
def _compiled(config: tuple[tuple[str, Any], ...], quant: bool, few: bool) -> Callable[..., jax.Array]:
    """Members of a family have one geometry, and compiling takes longer than all the rest."""
    model = SimpleAttentionNetwork(TransformerConfig(**dict(config)))
    options = {"xla_backend_optimization_level": 0} if few else None
    return jax.jit(
        lambda params, ids: model.apply({"params": params}, ids, quant=quant), compiler_options=options
    )


def _config(g: dict[str, Any], split_permutations: bool) -> TransformerConfig:
    same = (
        *("vocab_size", "out_vocab", "d_model", "num_heads", "num_kv_heads", "num_layers", "qk_head_dim"),
        *("v_head_dim", "max_seq_len", "rope_theta", "engram_orders", "engram_slots", "engram_seed_heads"),
        *("engram_layers", "global_layers", "sliding_window", "mhc_lanes", "qkv_conv_taps"),
    )
    return TransformerConfig(
        **{name: g[name] for name in same},
        engram_heads=g["num_engram_tables"] // len(g["engram_orders"]),
        ladder_widths=(g["d_model"] // 2,) if split_permutations else (),
        dtype="float32",
        remat=False,
    )


def _by_name(g: dict[str, Any], tensors: list[Any]) -> dict[str, Any]:
    """Tensors under the names that upstream's `_tensors` gives them, in its order."""
    taps = ["q_taps", "k_taps", "v_taps"] if g["qkv_conv_taps"] else []
    layer = ["norm_in", "q_proj", "k_proj", "v_proj", *taps, "q_norm", "k_norm", "gate_proj", "out_proj"]
    layer += ["post_norm", "attn_gate", "pre_hada", *MLP]
    names = ["embedding", *(f"{i}.{name}" for i in range(g["num_layers"]) for name in layer)]
    names += [f"mhc_{kind}_{name}" for kind in ("a", "b", "phi") for name in ("pre", "post", "res")]
    names += ["hada_p1", "hada_p2"]
    sites = range(len(g["engram_layers"]))
    names += [f"engrams_{i}.{name}" for i in sites for name in ("tables", "key_proj", "value_proj", "taps")]
    names += ["final_norm"]
    rest = [tensor for tensor in tensors[len(names) :] if not isinstance(tensor, bytes)]
    if rest:
        names += ["heads"]
        by_code = {head.code: head.key for head in HEADS}
        for code in rest[0]:
            key = by_code[int(code)]
            names += [
                f"{key}.{name}" for name in (*HEAD_TENSORS, *(["calibration"] if "router" in key else []))
            ]
    named = dict(zip(names, tensors, strict=False))
    assert len(named) + isinstance(tensors[-1], bytes) == len(tensors)
    return named


def _params(g: dict[str, Any], t: dict[str, Any]) -> dict[str, Any]:
    layers = range(g["num_layers"])

    def stacked(name: str) -> np.ndarray:
        return np.stack([t[f"{i}.{name}"] for i in layers])

    attention: dict[str, Any] = {
        f"{n}_proj": {"kernel": stacked(f"{n}_proj").transpose(0, 2, 1)}
        for n in ("q", "k", "v", "gate", "out")
    }
    attention |= {f"{n}_norm": {"scale": stacked(f"{n}_norm")} for n in ("q", "k")}
    if g["qkv_conv_taps"]:
        attention |= {f"{n}_taps": stacked(f"{n}_taps") for n in ("q", "k", "v")}
    block = {
        "ZCRMSNorm_0": {"scale": stacked("norm_in")},
        "post_attn_norm": {"scale": stacked("post_norm")},
        "pre_hada_norm": {"scale": stacked("pre_hada")},
        "attn_gate": stacked("attn_gate")[:, 0],
        "self_attn": attention,
        "hadamard_mlp": {name: stacked(name) for name in MLP},
    }
    stack = {"layers": {"block": block}, "final_norm": {"scale": t["final_norm"]}}
    for name in ("pre", "post", "res"):
        phi = t[f"mhc_phi_{name}"].reshape(g["num_layers"], -1, g["mhc_lanes"] * g["d_model"])
        stack |= {f"mhc_{kind}_{name}": t[f"mhc_{kind}_{name}"] for kind in ("a", "b")}
        stack[f"mhc_phi_{name}"] = phi.transpose(0, 2, 1)
    params = {"embedding": {"embedding": t["embedding"]}, "stack": stack}
    for site in range(len(g["engram_layers"])):
        parts = {name: t[f"engrams_{site}.{name}"] for name in ("tables", "key_proj", "value_proj", "taps")}
        params[f"engrams_{site}"] = {
            "embedding": parts["tables"].reshape(g["num_engram_tables"], g["engram_slots"], -1),
            "key_proj": {"kernel": parts["key_proj"].T},
            "value_proj": {"kernel": parts["value_proj"].T},
            "taps": parts["taps"],
        }
    for head in HEADS:
        if f"{head.key}.probes" in t:
            params[head.key] = _head_params(head.key, t)
    return params


def _head_params(key: str, t: dict[str, Any]) -> dict[str, Any]:
    gain = t[f"{key}.gain"]
    head = {name: t[f"{key}.{name}"] for name in ("gain", "query", "row_bias")}
    head["probes"] = t[f"{key}.probes"].reshape(*gain.shape, -1)
    head["proj"] = {"kernel": t[f"{key}.proj"].T}
    if key == "embedding_head":  # its projection has no bias; these two are for training
        return head | {"log_temp": np.float32(0), "bias": np.float32(0)}
    head["proj"]["bias"] = t[f"{key}.bias"]
    return head
