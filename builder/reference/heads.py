"""The probe heads of a container: embedding, confidence, router.

Owns: from a model's hidden cells to one vector per text. A head reads every layer, not only the last.
Generation 2 calls its embedding `contrastive`, has no router, and knows no rows: one softmax over all cells.
Does not know: text, how an answer uses the numbers. The router head's three logits stand beside a
calibration vector whose use upstream does not define; it is read and kept, not applied.
Source: `probe_pool` and `ProbeHead` in `needle/model/architecture.py` of cactus-needle 3.2.8; generation 2 by
the answers of needle-rs 0.3.1. Letters: B batch, T tokens, R rows (layers + 1), K probes, S queries, O
outputs, D d_model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from builder.cact.reader import Container
from builder.errors import UsageError
from builder.reference.layers import unit_rms

EMBEDDING_EPSILON = 1e-12


STORED_NAMES = {"contrastive": "embedding"}
"""Heads that a container calls by another name."""


def head_names(container: Container) -> tuple[str, ...]:
    """The heads that the container has, by the names of builder/runtime/interface.py."""
    return tuple(STORED_NAMES.get(name, name) for name in container.head_names)


def open_head(container: Container, name: str) -> ProbeHead | WholeTextHead:
    """The head. Raises `UsageError` (unknown_head) if the container does not have it."""
    by_name = dict(zip(head_names(container), container.head_names, strict=True))
    if name not in by_name:
        known = ", ".join(by_name) or "none"
        raise UsageError(f"{container.subject}: has no {name!r} head; heads: {known}", code="unknown_head")
    if container.header.generation == 2:
        return WholeTextHead(container, name, by_name[name])
    return ProbeHead(container, name)


class ProbeHead(nn.Module):
    """A head of generation 3: what its probes find in each row, then what its queries find among that."""

    def __init__(self, container: Container, name: str) -> None:
        super().__init__()

        def tensor(part: str) -> Tensor:
            return torch.from_numpy(container.tensor(f"heads.{name}.{part}"))

        self.name = name
        self.gain = nn.Parameter(tensor("gain"))  # (R, K)
        self.probes = nn.Parameter(tensor("probes").reshape(*self.gain.shape, -1))  # (R, K, D)
        self.query = nn.Parameter(tensor("query"))  # (S, D)
        self.row_bias = nn.Parameter(tensor("row_bias"))  # (S, R, K)
        self.proj = nn.Parameter(tensor("proj"))  # (O, S*D)
        self.bias = nn.Parameter(tensor("bias"))  # (O,)
        self.calibration = nn.Parameter(tensor("calibration")) if name == "router" else None  # (3,)

    def forward(self, cells: Tensor) -> Tensor:
        """(B, T, R, D) -> (B, O): a unit vector (embedding), a probability (confidence), logits (router)."""
        scale = math.sqrt(cells.shape[-1])
        attention = (torch.einsum("btrd,rkd->brkt", cells, self.probes) / scale).softmax(-1)  # over positions
        pooled = unit_rms(torch.einsum("brkt,btrd->brkd", attention, cells)) * self.gain[..., None]
        choice = torch.einsum("brkd,sd->bsrk", pooled, self.query) / scale + self.row_bias
        weights = choice.flatten(2).softmax(-1)  # (B, S, R*K)
        answer = torch.einsum("bsm,bmd->bsd", weights, pooled.flatten(1, 2)).flatten(1)  # (B, S*D)
        return _finish(self.name, answer, self.proj, self.bias)


class WholeTextHead(nn.Module):
    """A head of generation 2: each probe looks at the cells of all rows at once."""

    def __init__(self, container: Container, name: str, stored_name: str) -> None:
        super().__init__()
        self.name = name
        self.probes, self.proj, self.bias = (
            nn.Parameter(torch.from_numpy(container.tensor(f"heads.{stored_name}.{part}")))
            for part in ("probes", "proj", "bias")
        )  # (K, D), (O, K*D), (O,)

    def forward(self, cells: Tensor) -> Tensor:
        """(B, T, R, D) -> (B, O), as `ProbeHead.forward`."""
        every = cells.flatten(1, 2)  # (B, T*R, D)
        attention = (torch.einsum("bcd,kd->bkc", every, self.probes) / math.sqrt(every.shape[-1])).softmax(-1)
        answer = torch.einsum("bkc,bcd->bkd", attention, every).flatten(1)  # (B, K*D)
        return _finish(self.name, answer, self.proj, self.bias)


def _finish(name: str, answer: Tensor, proj: Tensor, bias: Tensor) -> Tensor:
    if name == "embedding":
        vector = functional.linear(answer, proj)
        return vector / torch.sqrt(vector.square().sum(-1, keepdim=True) + EMBEDDING_EPSILON)
    logits = functional.linear(answer, proj, bias)
    return torch.sigmoid(logits) if name == "confidence" else logits
