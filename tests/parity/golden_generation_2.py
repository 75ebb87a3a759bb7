"""What upstream's own generation-2 model computes: writes tests/golden/generation_2.json.

    pip download --no-deps --dest FOLDER cactus-needle==2.0.15 && unzip -d FOLDER FOLDER/cactus_needle-*.whl
    python -m tests.parity.golden_generation_2 FOLDER

That release cannot be installed beside the present one, so its answers are kept instead: logits and heads of
JAX in float32, on the parameters that its own reader takes from the file. The tests write the same file again
(`golden_file`) and compare.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.generation_2 import HEADER, write_generation_2
from tests.engine.heads_of_generation_2 import with_heads

GOLDEN = Path(__file__).parents[1] / "golden" / "generation_2.json"
WIDTHS = {"gate_proj": 2, "tables": 2, "v_proj": 3, "phi_res": 3, "out_proj": 5}
"""All but one bit, whose level that release draws from samples and later ones compute."""
IDS = np.random.default_rng(5).integers(20, 1000, 100).tolist()
CASES = ((0, 0), (24, 0), (24, 30))
"""`kv_window` of the header, and how many first tokens are pinned."""
POSITIONS = (0, 1, 9, 24, 40, 60, 80, 99)
LOGIT_STEP = 16
"""Every so manieth logit of these positions is kept."""


def golden_file(kv_window: int) -> bytes:
    """A file with codes of 2, 3, 4 bits and ternary ones, and both heads."""
    header = dataclasses.replace(HEADER, kv_window=kv_window)
    return with_heads(write_generation_2(header, seed=26, bits=WIDTHS), seed=27)


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    cases = []
    for kv_window, pinned in CASES:
        data = golden_file(kv_window)
        logits, heads = _upstream(data, kv_window, pinned)
        cases.append(
            {
                "kv_window": kv_window,
                "pinned": pinned,
                "sha256": hashlib.sha256(data).hexdigest(),
                "argmax": logits.argmax(-1).tolist(),
                "logits": [_digits(logits[t, ::LOGIT_STEP]) for t in POSITIONS],
                "heads": {name: _digits(said) for name, said in heads.items()},
            }
        )
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    GOLDEN.write_text(f"[\n{lines}\n]\n", "utf-8")


def _digits(values: np.ndarray) -> list[float]:
    """Nine digits pin a binary32."""
    return [float(f"{value:.9g}") for value in values]


def _upstream(data: bytes, kv_window: int, pinned: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits (positions, vocab) f32, and what each head says of the whole text."""
    import jax
    import jax.numpy as jnp
    from needle.model.architecture import SimpleAttentionNetwork, make_causal_mask
    from needle.model.export import read_export

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cact"
        path.write_bytes(data)
        geometry, tensors = read_export(path)
    position = jnp.arange(len(IDS))
    first = position < pinned
    mask = make_causal_mask(len(IDS))
    if kv_window:  # as `hidden_cells` of that release does
        mask = mask & ((position[:, None] - position[None, :] < kv_window) | first[None, :])[None, None]
    model = SimpleAttentionNetwork(_config(geometry))
    params, tokens = {"params": _params(geometry, iter(tensors))}, jnp.asarray([IDS], jnp.int32)
    window = {"window": kv_window, "sink": first[None]}
    embedding = model.apply(params, tokens, **window, method=model.encode_contrastive)[0]
    confidence = jax.nn.sigmoid(model.apply(params, tokens, **window, method=model.forward_confidence))
    heads = {"embedding": np.asarray(embedding), "confidence": np.asarray(confidence)}
    return np.asarray(model.apply(params, tokens, mask=mask))[0], heads


def _config(g: dict[str, Any]) -> Any:
    from needle.model.architecture import TransformerConfig

    same = ("vocab_size", "d_model", "num_heads", "num_kv_heads", "num_layers", "max_seq_len", "rope_theta")
    same += ("engram_orders", "engram_slots", "engram_layers", "mhc_lanes")
    return TransformerConfig(
        **{name: g[name] for name in same},
        attn_dim=g["num_heads"] * g["head_dim"],
        engram_heads=g["num_engram_tables"] // len(g["engram_orders"]),
        dtype="float32",
        remat=False,
    )


def _params(g: dict[str, Any], tensors: Any) -> dict[str, Any]:
    """Upstream's parameter tree from tensors in the order that upstream's `_tensors` writes them."""
    layer_names = ("norm_in", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "gate_proj", "out_proj")
    layer_names += ("post_norm", "attn_gate", "pre_hada", "d1", "d2", "d3")
    embedding = next(tensors)
    layers = [{name: next(tensors) for name in layer_names} for _ in range(g["num_layers"])]
    t = {name: np.stack([layer[name] for layer in layers]) for name in layer_names}
    stack = {f"mhc_{kind}_{name}": next(tensors) for kind in "ab" for name in ("pre", "post", "res")}
    for name in ("pre", "post", "res"):
        phi = next(tensors).reshape(g["num_layers"], -1, g["mhc_lanes"] * g["d_model"])
        stack[f"mhc_phi_{name}"] = phi.transpose(0, 2, 1)
    engrams = {}
    for site in range(len(g["engram_layers"])):
        tables, key_proj, value_proj, taps = (next(tensors) for _ in range(4))
        engrams[f"engrams_{site}"] = {
            "embedding": tables.reshape(g["num_engram_tables"], g["engram_slots"], -1),
            "key_proj": {"kernel": key_proj.T},
            "value_proj": {"kernel": value_proj.T},
            "taps": taps,
        }
    projections = ("q_proj", "k_proj", "v_proj", "gate_proj", "out_proj")
    attention = {name: {"kernel": t[name].transpose(0, 2, 1)} for name in projections}
    attention |= {name: {"scale": t[name]} for name in ("q_norm", "k_norm")}
    block = {
        "ZCRMSNorm_0": {"scale": t["norm_in"]},
        "post_attn_norm": {"scale": t["post_norm"]},
        "pre_hada_norm": {"scale": t["pre_hada"]},
        "attn_gate": t["attn_gate"][:, 0],
        "self_attn": attention,
        "hadamard_mlp": {name: t[name] for name in ("d1", "d2", "d3")},
    }
    final_norm = {"scale": next(tensors)}
    stack |= {"layers": {"block": block}, "final_norm": final_norm}
    next(tensors)  # the manifest
    heads: dict[str, Any] = {}
    for name in ("contrastive_head", "confidence_head"):
        probes, proj, bias = (next(tensors) for _ in range(3))
        heads[name] = {"probes": probes, "proj": {"kernel": proj.T, "bias": bias}}
    del heads["contrastive_head"]["proj"]["bias"]  # stored as zeros, and not in that head
    heads["contrastive_head"]["log_temp"] = np.float32(0)  # for training
    return {"embedding": {"embedding": embedding}, "stack": stack, **engrams, **heads}


if __name__ == "__main__":
    main()
