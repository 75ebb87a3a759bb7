"""The MLP of generation 2, the one part that it does not share with generation 3 (layers.py).

Owns: the maths, to be read beside docs/reference.md. Does not know: containers, which layer it stands in.
Source: `HadamardMLP` in `needle/model/architecture.py` of cactus-needle 2.0.15. Letters as in `layers.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class WalshMLP(nn.Module):
    """Three learned diagonals around two fixed Walsh-Hadamard transforms and a SiLU."""

    TENSORS = ("d1", "d2", "d3")
    d1: Tensor
    d2: Tensor
    d3: Tensor

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        for name in self.TENSORS:
            self.register_parameter(name, nn.Parameter(weights[name]))  # (M,)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        z = functional.pad(x, (0, self.d1.shape[0] - x.shape[-1]))  # (B, T, M)
        z = functional.silu(self.d2 * walsh(self.d1 * z))
        return (self.d3 * walsh(z))[..., : x.shape[-1]]


def walsh(z: Tensor) -> Tensor:
    """H z over the last axis, whose size M is a power of two. H is symmetric and its own inverse.

    H is Sylvester's matrix of signs over the root of M: sums and differences of pairs 1, 2, 4, ... apart.
    """
    size = z.shape[-1]
    out, half = z, 1
    while half < size:
        low, high = out.reshape(*z.shape[:-1], -1, 2, half).unbind(-2)
        out = torch.stack([low + high, low - high], dim=-2)
        half *= 2
    return out.reshape(z.shape) / math.sqrt(size)
