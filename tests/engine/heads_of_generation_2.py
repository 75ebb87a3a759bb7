"""Random probe heads for files of generation 2, which no exporter writes any more."""

from __future__ import annotations

import numpy as np

from builder.cact.reader import read_container
from builder.cact.writer import Blob, blobs_of, half_blob, write_container

PROBES = {"contrastive": 4, "confidence": 8}
OUTPUTS = {"contrastive": 128, "confidence": 1}
"""As in the published files."""


def with_heads(data: bytes, seed: int) -> bytes:
    """The container with both heads before its tokenizer."""
    container = read_container(data)
    rng, d = np.random.default_rng(seed), container.header.d_model

    def normal(*shape: int, scale: float = 1.0) -> Blob:
        return half_blob(scale * rng.standard_normal(shape))

    heads = [half_blob([1, 2])]
    for name, probes in PROBES.items():
        bias = np.zeros(OUTPUTS[name]) if name == "contrastive" else rng.standard_normal(1)
        heads += [normal(probes, d), normal(OUTPUTS[name], probes * d, scale=(probes * d) ** -0.5)]
        heads.append(half_blob(bias))
    *model, tokenizer = blobs_of(container)
    return write_container(container.header, [*model, *heads, tokenizer])
