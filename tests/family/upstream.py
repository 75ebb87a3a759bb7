"""The oracle: upstream's own model, checkpoint writer, merge, depth cut and exporter, run live.

Weights are random, in the shapes of upstream's own model; nothing is trained and nothing is fetched.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from needle.model import architecture, checkpoints, export, finetune, run
from needle.model.tokenizer import SANTokenizer

TOKENIZER = Path(__file__).parents[2] / "examples" / "demo" / "tokenizer.model"
TINY = {
    "vocab_size": 1024,
    "d_model": 128,
    "num_heads": 4,
    "num_kv_heads": 2,
    "num_layers": 5,
    "qk_head_dim": 16,
    "v_head_dim": 24,
    "max_seq_len": 256,
    "dtype": "float32",
    "flash": False,
    "engram_slots": 64,
    "engram_layers": (1, 3),
    "global_layers": (2, 4),
    "sliding_window": 32,
    "qkv_conv_taps": 3,
    "embedding_dim": 32,
}


def random_params(config: architecture.TransformerConfig, seed: int) -> dict:
    """Upstream's parameter tree, all three heads included, with N(0, 0.05) in every tensor."""
    model = architecture.SimpleAttentionNetwork(config)
    tokens = jnp.zeros((1, 4), jnp.int32)

    def shapes(method):
        return jax.eval_shape(lambda: model.init(jax.random.PRNGKey(0), tokens, method=method)["params"])

    tree = dict(shapes(None))
    for head in ("embedding", "confidence", "router"):
        tree[f"{head}_head"] = shapes(f"forward_{head}")[f"{head}_head"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: (0.05 * rng.standard_normal(s.shape)).astype(np.float32), tree)


def write_checkpoint(path: Path, *, seed: int = 0, drop: tuple[str, ...] = (), **changes: object) -> Path:
    """A random checkpoint as upstream writes it; `drop` leaves fields out of the saved config."""
    config = architecture.TransformerConfig(**{**TINY, **changes})
    saved = {name: value for name, value in config.__dict__.items() if name not in drop}
    params = random_params(config, seed)
    checkpoint = {"format_version": 2, "params": params, "config": saved, "step": 1}
    checkpoints.write_checkpoint(path, checkpoint)
    return path


def write_adapter(path: Path, checkpoint: Path, *, rank: int = 4, seed: int = 1) -> Path:
    """A random adapter on upstream's own targets, as upstream writes it."""
    params, _ = run.load_checkpoint(str(checkpoint))
    targets = finetune.lora_target_paths(params)
    shapes = jax.eval_shape(lambda: finetune.init_lora(params, targets, rank, jax.random.PRNGKey(0)))
    rng = np.random.default_rng(seed)
    pairs = {
        "/".join(key): {
            side: (0.05 * rng.standard_normal(shape.shape)).astype(np.float32) for side, shape in pair.items()
        }
        for key, pair in shapes.items()
    }
    checkpoints.write_adapter(path, {"lora": pairs, "scale": 2.0, "base": str(checkpoint), "rank": rank})
    return path


def build(checkpoint: Path, out: Path, *, adapter: Path | None = None, layers: int | None = None) -> Path:
    """What `needle build` does with these files, without the download (needle/model/build.py)."""
    params, config = run.load_checkpoint(str(checkpoint))
    if adapter is not None:
        stored = checkpoints.read_adapter(adapter)
        lora = {
            tuple(key.split("/")): {"A": jnp.asarray(pair["A"]), "B": jnp.asarray(pair["B"])}
            for key, pair in stored["lora"].items()
        }
        params = finetune.merge_lora(params, lora, stored["scale"])
        params = {k: v for k, v in params.items() if k != architecture.ConfidenceHead.key}
    params, config = finetune.rung(params, config, layers)
    return write(params, config, out)


def write(params: dict, config: architecture.TransformerConfig, out: Path) -> Path:
    """Upstream's exporter alone."""
    window = architecture.effective_kv_window(config)
    export.write_export(params, config, str(out), tokenizer=SANTokenizer(str(TOKENIZER)), kv_window=window)
    return out
