"""Random-weight models, made live by upstream's own exporter and scaled so that logits vary.

With upstream's initial values the layers are nearly dead and the argmax is almost the input token, which any
numerics gets right; here every part of the model moves the logits. Geometries are small and differ in what a
reader or a kernel can get wrong: taps, out_vocab, padded widths, permutations, bit widths, heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from needle.model import export as upstream
from needle.model.architecture import ENGRAM_CONV_TAPS, TransformerConfig, _hada_blocks, engram_geometry

from builder.cact.sentencepiece_model import read_sentencepiece
from builder.cact.tokenizer import pack_tokenizer

CONDITION_COUNT = 8
TOKENIZER_MODEL = Path(__file__).parents[2] / "examples" / "demo" / "tokenizer.model"


@dataclass(frozen=True)
class Geometry:
    """What differs from a small model with everything on."""

    config: dict[str, Any] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    """Part of a CQ tensor's name -> its width; 4 where nothing matches."""
    heads: tuple[str, ...] = ()


BASE_CONFIG = {
    **{"vocab_size": 1024, "d_model": 128, "num_layers": 5, "num_heads": 4, "num_kv_heads": 2},
    **{"qk_head_dim": 16, "v_head_dim": 32, "max_seq_len": 160, "engram_slots": 61, "engram_layers": (1, 4)},
    **{"engram_heads": 1, "global_layers": (2,), "sliding_window": 24, "dtype": "float32", "remat": False},
}
GEOMETRIES = {
    "everything": Geometry(heads=("embedding", "confidence", "router")),
    "no_taps_out_vocab": Geometry(
        {"qkv_conv_taps": 0, "out_vocab": 700, "sliding_window": 0, "global_layers": ()}
    ),
    "padded": Geometry(
        {"d_model": 192, "num_heads": 6, "num_kv_heads": 3, "mhc_lanes": 3, "engram_orders": (1, 2, 4)}
    ),
    "split_permutations": Geometry(
        {"ladder_widths": (64,), "engram_heads": 2, "engram_seed_heads": 3, "num_kv_heads": 4}
    ),
    "mixed_bits": Geometry(bits={"proj": 2, "tables": 2, "mhc_phi": 3, "value_proj": 3, "q_proj": 3}),
}
PUBLISHED = Geometry(
    {
        **{
            "vocab_size": 2048,
            "d_model": 768,
            "num_layers": 20,
            "num_heads": 12,
            "num_kv_heads": 2,
            "qk_head_dim": 48,
        },
        **{"v_head_dim": 64, "max_seq_len": 8192, "sliding_window": 64, "global_layers": (4, 9, 14, 19)},
        **{"engram_layers": (3, 7, 11, 15, 19), "engram_heads": 0, "engram_slots": 2048},
    }
)
"""The published generation-3 model with smaller tables and window; 28 MB, so only `distances.py` makes it."""
EVERY_GEOMETRY = [
    name if name == "everything" else pytest.param(name, marks=pytest.mark.slow) for name in GEOMETRIES
]
"""For fixtures: one geometry in `make check`, all of them in `make test`."""


def write_random_model(path: Path, geometry: Geometry, seed: int) -> Path:
    """Export a model with this geometry and seed to `path`."""
    config = TransformerConfig(**{**BASE_CONFIG, **geometry.config})
    params = random_params(config, geometry.heads, np.random.default_rng(seed))
    pack = upstream._q

    def pack_mixed(name: str, matrix: np.ndarray, bits: int, group: int) -> Any:
        width = next((width for part, width in geometry.bits.items() if part in name), bits)
        with mock.patch.object(upstream, "WEIGHT_BITS", width):  # the released packer refuses other widths
            return pack(name, matrix, width, group)

    tokenizer = pack_tokenizer(read_sentencepiece(TOKENIZER_MODEL))
    with mock.patch.object(upstream, "_q", pack_mixed):
        upstream.write_export(params, config, path, tokenizer=tokenizer)
    return path


def random_params(
    config: TransformerConfig, heads: tuple[str, ...], rng: np.random.Generator
) -> dict[str, Any]:
    """Upstream's parameter tree, float32, with every part alive."""

    def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> np.ndarray:
        return (mean + scale * rng.standard_normal(shape)).astype(np.float32)

    def linear(fan_in: int, fan_out: int, *stacked: int) -> dict[str, np.ndarray]:
        return {"kernel": normal(*stacked, fan_in, fan_out, scale=fan_in**-0.5)}

    d, layers, lanes = config.d_model, config.num_layers, config.mhc_lanes
    query, key = config.num_heads * config.qk_head_dim, config.num_kv_heads * config.qk_head_dim
    value, out = config.num_kv_heads * config.v_head_dim, config.num_heads * config.v_head_dim
    attention: dict[str, Any] = {
        "q_proj": linear(d, query, layers),
        "k_proj": linear(d, key, layers),
        "v_proj": linear(d, value, layers),
        "gate_proj": linear(d, out, layers),
        "out_proj": linear(out, d, layers),
        "q_norm": {"scale": normal(layers, config.qk_head_dim, scale=0.3, mean=0.5)},
        "k_norm": {"scale": normal(layers, config.qk_head_dim, scale=0.3, mean=0.5)},
    }
    if config.qkv_conv_taps:
        for name, width in (("q", query), ("k", key), ("v", value)):
            attention[f"{name}_taps"] = normal(layers, config.qkv_conv_taps, width, scale=0.6)
    params = {
        "embedding": {"embedding": normal(config.vocab_size, d, scale=2 * d**-0.5)},
        "stack": {
            "layers": {"block": _block(config, attention, normal)},
            "final_norm": {"scale": normal(d, mean=-1.0)},
            **{f"mhc_a_{name}": normal(layers, scale=0.5, mean=0.5) for name in ("pre", "post", "res")},
            **{f"mhc_b_{name}": normal(layers, lanes) for name in ("pre", "post")},
            "mhc_b_res": normal(layers, lanes, lanes) + 2 * np.eye(lanes, dtype=np.float32),
            **{
                f"mhc_phi_{n}": normal(layers, lanes * d, lanes, scale=(lanes * d) ** -0.5)
                for n in ("pre", "post")
            },
            "mhc_phi_res": normal(layers, lanes * d, lanes * lanes, scale=(lanes * d) ** -0.5),
        },
    }
    orders, table_heads, sub_dim = engram_geometry(config)
    tables = len(orders) * table_heads
    for site in range(len(config.engram_layers)):
        params[f"engrams_{site}"] = {
            "embedding": normal(tables, config.engram_slots, sub_dim),
            "key_proj": linear(tables * sub_dim, d),
            "value_proj": linear(tables * sub_dim, d),
            "taps": normal(ENGRAM_CONV_TAPS, d, scale=0.5),
        }
    for name in heads:
        params[f"{name}_head"] = _head(name, config, normal)
    return params


def _block(config: TransformerConfig, attention: dict[str, Any], normal: Any) -> dict[str, Any]:
    d, layers = config.d_model, config.num_layers
    n = 1 << (d - 1).bit_length()
    a, b = _hada_blocks(n)
    mlp = {name: normal(layers, n, scale=0.3, mean=1.0) for name in ("d1", "d2", "d3", "d4")}
    mlp["b2"] = normal(layers, n, scale=0.3)
    for step in (1, 2, 3):
        mlp[f"w{step}a"] = normal(layers, a, a, scale=a**-0.5)
        mlp[f"w{step}b"] = normal(layers, b, b, scale=b**-0.5)
    mlp["cond_v"] = normal(layers, d, CONDITION_COUNT, scale=2 * d**-0.5)
    mlp["cond_u"] = normal(layers, CONDITION_COUNT, n, scale=0.7)
    norms = ("ZCRMSNorm_0", "post_attn_norm", "pre_hada_norm")
    return {
        **{name: {"scale": normal(layers, d, scale=0.3)} for name in norms},
        "attn_gate": normal(layers),
        "self_attn": attention,
        "hadamard_mlp": mlp,
    }


def _head(name: str, config: TransformerConfig, normal: Any) -> dict[str, Any]:
    rows, d = config.num_layers + 1, config.d_model
    probes = getattr(config, f"{name}_probes")
    queries = getattr(config, f"{name}_queries")
    outputs = {"embedding": config.embedding_dim, "confidence": 1, "router": 3}[name]
    return {
        "probes": normal(rows, probes, d),
        "gain": normal(rows, probes, scale=0.3, mean=1.0),
        "query": normal(queries, d),
        "row_bias": normal(queries, rows, probes),
        "proj": {
            "kernel": normal(queries * d, outputs, scale=(queries * d) ** -0.5),
            "bias": normal(outputs, scale=0.3),
        },
    }
