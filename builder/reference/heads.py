"""The probe heads of a generation-3 container: embedding, confidence, router.

Owns: from a model's hidden cells to one vector per text. A head reads every layer, not only the last.
Does not know: text, how an answer uses the numbers. The router head's three logits stand beside a
calibration vector whose use upstream does not define; it is read and kept, not applied.
Source: `probe_pool` and `ProbeHead` in `needle/model/architecture.py` of cactus-needle 3.2.8. Letters: B
batch, T tokens, R rows (layers + 1), K probes, S queries, O outputs, D d_model.
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


class ProbeHead(nn.Module):
    """One head. Raises `UsageError` (unknown_head) if the container does not have it."""

    def __init__(self, container: Container, name: str) -> None:
        super().__init__()
        if name not in container.head_names:
            known = ", ".join(container.head_names) or "none"
            raise UsageError(
                f"{container.subject}: has no {name!r} head; heads: {known}", code="unknown_head"
            )

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
        if self.name == "embedding":
            vector = functional.linear(answer, self.proj)
            return vector / torch.sqrt(vector.square().sum(-1, keepdim=True) + EMBEDDING_EPSILON)
        logits = functional.linear(answer, self.proj, self.bias)
        return torch.sigmoid(logits) if self.name == "confidence" else logits
