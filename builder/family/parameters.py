"""A checkpoint's tensors by the container's names, in the container's shapes.

Owns: the map between the two vocabularies, orientation ([in, out] kernels become [out, in] rows), and the cut
to a shallower model. Does not know: codes, bytes.
Source: `needle.model.export._tensors` of cactus-needle 3.2.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from builder.errors import FamilyError
from builder.family.checkpoint import Checkpoint
from builder.family.safetensors_file import Floats

BLOCK = "stack/layers/block"
LAYER_KEYS = {
    "norm_in": "ZCRMSNorm_0/scale",
    **{f"{part}_proj": f"self_attn/{part}_proj/kernel" for part in ("q", "k", "v", "gate", "out")},
    **{f"{part}_taps": f"self_attn/{part}_taps" for part in ("q", "k", "v")},
    **{f"{part}_norm": f"self_attn/{part}_norm/scale" for part in ("q", "k")},
    "post_attn_norm": "post_attn_norm/scale",
    "attn_gate": "attn_gate",
    "pre_hada_norm": "pre_hada_norm/scale",
    **{name: f"hadamard_mlp/{name}" for name in ("d1", "d2", "b2", "d3", "d4", "cond_v", "cond_u")},
    **{f"w{step}{side}": f"hadamard_mlp/w{step}{side}" for step in (1, 2, 3) for side in "ab"},
}
ENGRAM_KEYS = {
    "tables": "embedding",
    "key_proj": "key_proj/kernel",
    "value_proj": "value_proj/kernel",
    "taps": "taps",
}
HEAD_KEYS = {"embedding": "embedding_head", "confidence": "confidence_head", "router": "router_head"}
"""Heads in the order of their codes."""
CALIBRATION_DEFAULT = (0.90, 0.00, 0.60)
"""What upstream writes for a router head without a calibration."""
PERMUTATION_SEEDS = {"hada_p1": 11, "hada_p2": 13}
SPLIT_SEED_STEP = 977


@dataclass(frozen=True)
class Parameters:
    """A checkpoint (with some tensors replaced) seen as the model with the blocks `layers`."""

    checkpoint: Checkpoint
    replaced: Mapping[str, Floats]
    layers: tuple[int, ...]
    adapter: Path | None = None
    """Where the replaced tensors come from."""

    def source(self, key: str) -> Path:
        """The file that is to blame for a tensor of the checkpoint's name `key`."""
        return self.adapter if self.adapter and key in self.replaced else self.checkpoint.path

    def key(self, name: str) -> str:
        """The checkpoint's name for a tensor that the container calls `name`; a head's is its folder."""
        part, _, rest = name.partition(".")
        if part == "embedding":
            return "embedding/embedding"
        if part == "layers":
            return f"{BLOCK}/{LAYER_KEYS[rest.partition('.')[2]]}"
        if part == "engrams":
            site, _, field = rest.partition(".")
            return f"engrams_{self.sites[int(site)]}/{ENGRAM_KEYS[field]}"
        if part == "final_norm":
            return "stack/final_norm/scale"
        return f"stack/{name}"

    def array(self, name: str) -> Floats:
        """The tensor that the container calls `name`, as the container shapes it. Raises `FamilyError`."""
        key = self.key(name)
        part, _, rest = name.partition(".")
        if part == "layers":
            layer, _, field = rest.partition(".")
            is_kernel = field.endswith("_proj")
            values: Floats = self._blocks(key, 3 if is_kernel else None)[self.layers[int(layer)]]
            if field == "attn_gate":
                return values.reshape(1) if values.size == 1 else values
            return values.T if is_kernel else values
        if part == "engrams":
            if rest.endswith("tables"):
                tables = self._stored(key, 3)
                return tables.reshape(-1, tables.shape[-1])
            return self._stored(key).T if rest.endswith("_proj") else self._stored(key)
        if part.startswith("mhc_phi"):
            phi = self._blocks(key, 3)[list(self.layers)]
            return phi.transpose(0, 2, 1).reshape(-1, phi.shape[1])
        if part.startswith("mhc_"):
            return self._blocks(key)[list(self.layers)]
        return self._stored(key)

    @property
    def sites(self) -> tuple[int, ...]:
        """Indices, among the checkpoint's engram sites, of those whose block is kept."""
        return tuple(
            i for i, layer in enumerate(self.checkpoint.config.engram_layers) if layer in self.layers
        )

    @property
    def heads(self) -> tuple[str, ...]:
        """The probe heads in the checkpoint, in the order of their codes."""
        names = self.checkpoint.tensors
        return tuple(head for head, key in HEAD_KEYS.items() if any(n.startswith(f"{key}/") for n in names))

    def head(self, head: str) -> Iterator[tuple[str, Floats]]:
        """(field, values) of one head in file order; rows of dropped blocks are cut."""
        key = HEAD_KEYS[head]
        rows = [0, *(layer + 1 for layer in self.layers)]
        count = self.checkpoint.config.num_layers + 1
        probes = self._stored(f"{key}/probes", 3, axis=0, size=count)[rows]
        yield "probes", probes.reshape(-1, probes.shape[-1])
        yield "gain", self._stored(f"{key}/gain", 2, axis=0, size=count)[rows]
        yield "query", self._stored(f"{key}/query", 2)
        yield "row_bias", self._stored(f"{key}/row_bias", 3, axis=1, size=count)[:, rows]
        projection = self._stored(f"{key}/proj/kernel", 2).T
        yield "proj", projection
        if f"{key}/proj/bias" in self.checkpoint.tensors:
            yield "bias", self._stored(f"{key}/proj/bias")
        else:
            yield "bias", np.zeros(len(projection), np.float32)
        if head == "router":
            stored = f"{key}/calibration" in self.checkpoint.tensors
            calibration = self._stored(f"{key}/calibration") if stored else CALIBRATION_DEFAULT
            yield "calibration", np.asarray(calibration, np.float32)

    def _blocks(self, key: str, ndim: int | None = None) -> Floats:
        """A tensor whose first axis is the block."""
        return self._stored(key, ndim, axis=0, size=self.checkpoint.config.num_layers)

    def _stored(self, key: str, ndim: int | None = None, *, axis: int = 0, size: int | None = None) -> Floats:
        values = self.replaced.get(key)
        if values is None:
            values = self.checkpoint.tensors.get(key)
        if values is None:
            raise self._bad(f"has no tensor {key}, which its config asks for")
        if ndim is not None and values.ndim != ndim:
            raise self._bad(f"{key} is {list(values.shape)}, must have {ndim} axes")
        if size is not None and (values.ndim <= axis or values.shape[axis] != size):
            raise self._bad(f"{key} is {list(values.shape)}, must have {size} entries on axis {axis}")
        return values

    def _bad(self, reason: str) -> FamilyError:
        return FamilyError(f"{self.checkpoint.path}: {reason}", code="bad_checkpoint")


def hada_permutation(name: str, size: int, *, split: bool) -> Floats:
    """The fixed permutation `hada_p1` or `hada_p2` as floats; `split` permutes each half by itself."""
    seed = PERMUTATION_SEEDS[name]
    if not split:
        return np.random.RandomState(seed).permutation(size).astype(np.float32)
    half = size // 2
    upper = half + np.random.RandomState(seed + SPLIT_SEED_STEP).permutation(half)
    both = np.concatenate([np.random.RandomState(seed).permutation(half), upper])
    return both.astype(np.float32)
