"""The full-size family of `bench.full_size_family` as sources: a checkpoint, three adapters, a `family.toml`.

Owns: writing them with upstream's own writers, so that the builder exports them as it would a publisher's.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from needle.model.architecture import SimpleAttentionNetwork, TransformerConfig
from needle.model.checkpoints import write_adapter, write_checkpoint
from needle.model.finetune import init_lora, lora_target_paths

from bench.full_size_family import MAGNITUDES, RANK, SCALE, TRAINING_MOVE

TOKENIZER = Path(__file__).parents[1] / "examples" / "demo" / "tokenizer.model"


def member_id(magnitude: float) -> str:
    """An id may not start with a digit."""
    return f"m{round(magnitude * 1e4):03}"


def write_sources(folder: Path) -> Path:
    """Write the sources into `folder`, or keep what is there; returns the `family.toml`. Needs about 3 GB."""
    settings = folder / "family.toml"
    if settings.exists():
        return settings
    folder.mkdir(parents=True, exist_ok=True)
    config = TransformerConfig(dtype="float32")
    tokens = jnp.zeros((1, 8), jnp.int32)
    params = jax.jit(SimpleAttentionNetwork(config).init)(jax.random.PRNGKey(0), tokens)["params"]
    write_checkpoint(
        folder / "base.safetensors", {"format_version": 2, "params": params, "config": asdict(config)}
    )
    random = np.random.default_rng(1)
    for magnitude in MAGNITUDES:
        lora = init_lora(params, lora_target_paths(params), RANK, jax.random.PRNGKey(0))
        for pair in lora.values():
            moved = random.normal(0, TRAINING_MOVE / RANK, pair["A"].shape)
            pair["A"] = pair["A"] + jnp.asarray(moved, jnp.float32)
            pair["B"] = jnp.asarray(random.normal(0, magnitude, pair["B"].shape), jnp.float32)
        named = {"/".join(path): pair for path, pair in lora.items()}
        adapter = {"lora": named, "scale": SCALE, "rank": RANK, "seed": 0}
        write_adapter(folder / f"{member_id(magnitude)}.lora.safetensors", adapter)
    shutil.copy(TOKENIZER, folder / "tokenizer.model")
    settings.write_text(_settings())
    return settings


def _settings() -> str:
    members = [
        f'[[specialists]]\nid = "{member_id(magnitude)}"\nabout = "B ~ N(0, {magnitude})"\n'
        f'adapter = "{member_id(magnitude)}.lora.safetensors"\n'
        for magnitude in MAGNITUDES
    ]
    head = '[family]\nname = "full-size"\ntitle = "Random weights"\ntokenizer = "tokenizer.model"\n'
    return "\n".join([head, '[base]\ncheckpoint = "base.safetensors"\n', *members])
