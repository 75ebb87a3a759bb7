"""A full-size generation-3 family with random weights: upstream's model, adapters and exporter.

Owns: the material of the full-size rows. Rank-16 adapters with A as upstream starts it, then moved by a tenth
of its size as training moves it, and B ~ N(0, magnitude); merged and exported as upstream's `needle build`
does. Random adapters are the worst case for a low-rank coder: their components are all equally strong.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from needle.model.architecture import SimpleAttentionNetwork, TransformerConfig
from needle.model.export import write_export
from needle.model.finetune import init_lora, lora_target_paths, merge_lora

MAGNITUDES = (0.001, 0.003, 0.01)
RANK, SCALE = 16, 2.0
TRAINING_MOVE = 0.1
"""How far training moved A in the demo adapters, against its start."""


def write_family(folder: Path) -> dict[str, Path]:
    """Write base.cact and one .cact per magnitude into `folder`, or keep what is there. Needs about 3 GB."""
    paths = {name: folder / f"{name}.cact" for name in ("base", *map(str, MAGNITUDES))}
    if all(path.exists() for path in paths.values()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    config = TransformerConfig(dtype="float32")
    tokens = jnp.zeros((1, 8), jnp.int32)
    params = jax.jit(SimpleAttentionNetwork(config).init)(jax.random.PRNGKey(0), tokens)["params"]
    write_export(params, config, str(paths["base"]))
    random = np.random.default_rng(1)
    for magnitude in MAGNITUDES:
        lora = init_lora(params, lora_target_paths(params), RANK, jax.random.PRNGKey(0))
        for adapter in lora.values():
            moved = random.normal(0, TRAINING_MOVE / RANK, adapter["A"].shape)
            adapter["A"] = adapter["A"] + jnp.asarray(moved, jnp.float32)
            adapter["B"] = jnp.asarray(random.normal(0, magnitude, adapter["B"].shape), jnp.float32)
        write_export(merge_lora(params, lora, SCALE), config, str(paths[str(magnitude)]))
    return paths
