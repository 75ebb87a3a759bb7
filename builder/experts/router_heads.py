"""Affine router heads and the frozen score bank that they are compiled into.

Owns: one head per expert (or per pair), the bank of a layer, and the bank's exactness: equal heads give equal
scores, scores are float32 whatever the model's dtype is.
Does not know: what is done with a score (policies.py).
Source: docs/experts.md, "Routing". Letters: T tokens, F features, K heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from builder.errors import UsageError
from builder.experts.onednn_linear import linear_without_autograd
from builder.experts.package_files import dtype_name


class AffineRouterHead:
    """`score = weight . features + bias` for one expert; a positive score is evidence for it.

    weight: (F,) f32; bias: one f32 number. Both are copied. Raises UsageError for another shape or dtype.
    """

    def __init__(self, expert_id: str, weight: Tensor, bias: Tensor | float = 0.0) -> None:
        bias = torch.as_tensor(bias, dtype=None if isinstance(bias, Tensor) else torch.float32)
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor.dtype != torch.float32:
                found = dtype_name(tensor.dtype)
                raise UsageError(f"router head {expert_id!r}: {name}: is {found}, must be float32")
        if weight.dim() != 1 or bias.numel() != 1:
            found = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise UsageError(f"router head {expert_id!r}: weight and bias: are {found}, must be (F,) and ()")
        self.expert_id = expert_id
        self.weight = weight.detach().cpu().clone()
        self.bias = bias.detach().cpu().clone().reshape(())

    @property
    def width(self) -> int:
        """F."""
        return self.weight.shape[0]


class ScoreBank(nn.Module):
    """All heads of one layer as one frozen affine map (T, F) -> (T, K) f32; column k is head k.

    Heads are kept in the order given: a head that is appended later never moves an earlier column.
    """

    weight: Tensor
    bias: Tensor
    twins: Tensor | None

    def __init__(self, heads: Sequence[AffineRouterHead]) -> None:
        super().__init__()
        widths = sorted({head.width for head in heads})
        if len(widths) != 1:
            raise UsageError(f"router heads: have the widths {widths}, must have one")
        self.register_buffer("weight", torch.stack([head.weight for head in heads]))  # (K, F)
        self.register_buffer("bias", torch.stack([head.bias for head in heads]))  # (K,)
        self.register_buffer("twins", _first_equal_column(self.weight, self.bias))

    def forward(self, features: Tensor) -> Tensor:
        """(T, F) f32 -> (T, K) f32."""
        linear = functional.linear if torch.is_grad_enabled() else linear_without_autograd
        scores = linear(features, self.weight, self.bias)
        return scores if self.twins is None else scores.index_select(1, self.twins)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Follow the model to another device, never to another dtype: a rounded head is another head."""
        device = fn(torch.empty(0, device=self.weight.device)).device
        return super()._apply(lambda tensor: tensor.to(device), recurse)  # type: ignore[no-untyped-call]


def _first_equal_column(weight: Tensor, bias: Tensor) -> Tensor | None:
    """(K,) the first column with the same head, or None where all differ.

    A matrix product may sum two equal columns in different orders; copying the first makes their tie exact.
    """
    first: dict[bytes, int] = {}
    rows = torch.cat([weight, bias[:, None]], dim=1).numpy()
    columns = [first.setdefault(row.tobytes(), column) for column, row in enumerate(rows)]
    return None if len(first) == len(columns) else torch.tensor(columns)
