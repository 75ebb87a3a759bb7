"""LoRA adapters as `needle finetune` writes them, and merging them.

Owns: reading an adapter and adding it to a checkpoint's kernels in float32. Does not know: containers.
Source: `needle.model.checkpoints.read_adapter`, `needle.model.finetune.merge_lora` of cactus-needle 3.2.8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from builder.errors import FamilyError, plain_name
from builder.family.checkpoint import Checkpoint
from builder.family.safetensors_file import Floats, read_safetensors
from builder.files import load_json

PREFIX = "lora/"
SEED_MAX = 2**32 - 1


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: kernel (L, in, out) += scale * A (L, in, rank) @ B (L, rank, out)."""

    path: Path
    scale: float
    pairs: dict[str, tuple[Floats, Floats]]
    """(A, B) by the checkpoint's name of the kernel."""
    seed: int = 0
    """What upstream drew A's start from; 0, its default, where the file does not say."""

    @property
    def is_empty(self) -> bool:
        """Whether merging changes nothing: upstream starts with B = 0, so an untrained adapter is empty."""
        return self.scale == 0 or not any(a.any() and b.any() for a, b in self.pairs.values())


def read_adapter(path: Path) -> Adapter:
    """Read an adapter. Raises `FamilyError` (unreadable, bad_safetensors, bad_adapter)."""
    metadata, tensors = read_safetensors(path)
    languages, seed = _metadata(path, metadata, "languages"), _metadata(path, metadata, "seed")
    scale = _finite(path, _metadata(path, metadata, "scale"))
    if languages is not None or "rows" in tensors:
        raise _bad(path, "is an audio (Whistle) adapter, which is not exported")
    names = {name.rpartition("/")[0] for name in tensors}
    if not names:
        raise _bad(path, "holds no tensors")
    pairs = {}
    for name in sorted(names):
        a, b = tensors.pop(f"{name}/A", None), tensors.pop(f"{name}/B", None)
        if not name.startswith(PREFIX) or a is None or b is None:
            raise _bad(path, f"{plain_name(name)} must be lora/KERNEL with the two matrices A and B")
        pairs[name.removeprefix(PREFIX)] = (a, b)
    if tensors:
        raise _bad(path, f"has a tensor {plain_name(min(tensors))} that belongs to no pair")
    return Adapter(path, scale, pairs, seed if isinstance(seed, int) and 0 <= seed <= SEED_MAX else 0)


def merge(checkpoint: Checkpoint, adapter: Adapter) -> dict[str, Floats]:
    """The kernels that the adapter changes, merged; the checkpoint stays as it is.

    Raises `FamilyError` (bad_adapter) for a kernel that the checkpoint lacks or that has other dimensions.
    """
    merged = {}
    for name, (a, b) in adapter.pairs.items():
        kernel = checkpoint.tensors.get(name)
        if kernel is None:
            raise _bad(adapter.path, f"adapts {plain_name(name)}, which {checkpoint.path} does not have")
        fits = a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
        if not fits or (*a.shape[:2], b.shape[2]) != kernel.shape:
            product = f"A {list(a.shape)} times B {list(b.shape)}"
            wanted = f"must give the kernel's {list(kernel.shape)}"
            raise _bad(adapter.path, f"{plain_name(name)}: {product} {wanted}")
        with np.errstate(over="ignore", invalid="ignore"):  # The exporter names what became infinite.
            merged[name] = kernel + np.float32(adapter.scale) * _product(a, b)
    return merged


def _metadata(path: Path, metadata: dict[str, str], key: str) -> object:
    text = metadata.get(key) or "null"
    return load_json(text.encode(), f"{path}: metadata {key}", error=FamilyError, code="bad_adapter")


def _finite(path: Path, scale: object) -> float:
    if isinstance(scale, int | float):
        return float(scale)
    raise _bad(path, f"scale is {plain_name(repr(scale))}, must be a number; is this an adapter?")


def _product(a: Floats, b: Floats) -> Floats:
    """A @ B in f32 (L, in, out), the same bits on every machine.

    Every output is the sum of one, two or four interleaved chains of fused multiply-adds over the rank,

        acc = f32(f64(acc) + f64(a[rank]) * f64(b[rank]))        (the product is exact in f64)

    added in pairs. How many, the width of B decides. That is the order of the kernels by which XLA merges on
    AVX2 machines, taken because upstream's bits are then met; fixed here, it depends on nothing.
    """
    count = {64: 1, 32: 2}.get(math.gcd(b.shape[-1], 64), 4)
    chains = [_chain(a[..., start::count], b[:, start::count]) for start in range(count)]
    while len(chains) > 1:
        chains = [left + right for left, right in zip(chains[::2], chains[1::2], strict=True)]
    return chains[0]


def _chain(a: Floats, b: Floats) -> Floats:
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for layer in range(len(a)):
        columns, rows = a[layer].astype(np.float64), b[layer].astype(np.float64)
        for rank in range(a.shape[-1]):
            total[layer] = np.multiply.outer(columns[:, rank], rows[rank]) + total[layer]
    return total


def _bad(path: Path, reason: str) -> FamilyError:
    return FamilyError(f"{path}: {reason}", code="bad_adapter")
