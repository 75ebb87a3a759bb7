"""The three kinds of payload: complete MLP weights, a low-rank delta, LoRA factors.

Owns: which tensors each kind has and how they fit together.
Does not know: files, layers, anchors (materialize.py fits a payload to an anchor).
Source: docs/experts.md, "Payloads". Letters: D hidden width, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from builder.experts.metadata import Activation, refuse
from builder.experts.package_files import dtype_name

LORA_A, LORA_B = ".lora_a", ".lora_b"
DELTA_TENSORS = ("down.weight", "up.weight")
PAYLOAD_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class FullMlp:
    """All parameters of an MLP under the anchor's own names. Buffers (permutations) stay the anchor's."""

    kind: ClassVar[str] = "full_mlp"
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class LowRankDelta:
    """`scale * up(activation(down(h)))`, to be added to the anchor's output.

    Tensors: `down.weight` (r, D), `up.weight` (D, r).
    """

    kind: ClassVar[str] = "low_rank_delta"
    tensors: Mapping[str, Tensor]
    activation: Activation = "identity"
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class LoraFactors:
    """`W + scale * B A` for linear modules of the anchor.

    Tensors: `<module>.lora_a` (r, in) and `<module>.lora_b` (out, r) for each target.
    """

    kind: ClassVar[str] = "lora"
    tensors: Mapping[str, Tensor]
    scale: float = 1.0
    targets: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = [name.removesuffix(LORA_A) for name in self.tensors if name.endswith(LORA_A)]
        object.__setattr__(self, "targets", tuple(names))


Payload = FullMlp | LowRankDelta | LoraFactors


def payload_dtype(payload: Payload) -> torch.dtype:
    """The one dtype of all its tensors."""
    return next(iter(payload.tensors.values())).dtype


def checked_payload(payload: Payload, source: object, name: str) -> Payload:
    """The payload with tensors of its own, out of reach of whoever made them.

    Raises PackageError (package_wrong_dtype, _missing_tensor, _unknown_tensor, _wrong_shape).
    """
    if not payload.tensors:
        refuse("missing_tensor", source, name, found="empty", allowed="at least one tensor")
    dtype = payload_dtype(payload)
    for tensor_name, tensor in payload.tensors.items():
        if tensor.dtype not in PAYLOAD_DTYPES or tensor.dtype != dtype:
            allowed = "one dtype for the payload: float32, float16 or bfloat16"
            field = f"{name}.{tensor_name}"
            refuse("wrong_dtype", source, field, found=dtype_name(tensor.dtype), allowed=allowed)
    if isinstance(payload, LowRankDelta):
        _check_delta(payload, source, name)
    elif isinstance(payload, LoraFactors):
        _check_lora(payload, source, name)
    own = {key: tensor.detach().to("cpu").clone().contiguous() for key, tensor in payload.tensors.items()}
    return replace(payload, tensors=MappingProxyType(own))


def converted_payload(payload: Payload, dtype: torch.dtype) -> Payload:
    """The same payload with its tensors rounded to another dtype."""
    return replace(payload, tensors={name: tensor.to(dtype) for name, tensor in payload.tensors.items()})


def _check_delta(payload: LowRankDelta, source: object, name: str) -> None:
    _check_names(payload, DELTA_TENSORS, source, name)
    down, up = (payload.tensors[key] for key in DELTA_TENSORS)
    if down.dim() != 2 or tuple(up.shape) != (down.shape[1], down.shape[0]):
        found = f"{tuple(down.shape)} and {tuple(up.shape)}"
        refuse("wrong_shape", source, f"{name}.down, up", found=found, allowed="(r, D) and (D, r)")


def _check_lora(payload: LoraFactors, source: object, name: str) -> None:
    wanted = tuple(target + suffix for target in payload.targets for suffix in (LORA_A, LORA_B))
    _check_names(payload, wanted, source, name)
    for target in payload.targets:
        a, b = payload.tensors[target + LORA_A], payload.tensors[target + LORA_B]
        if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
            found = f"{tuple(a.shape)} and {tuple(b.shape)}"
            field = f"{name}.{target}.lora_a, lora_b"
            refuse("wrong_shape", source, field, found=found, allowed="(r, in) and (out, r)")


def _check_names(payload: Payload, wanted: tuple[str, ...], source: object, name: str) -> None:
    for key in wanted:
        if key not in payload.tensors:
            refuse("missing_tensor", source, f"{name}.{key}", found="missing", allowed="there")
    for key in payload.tensors:
        if key not in wanted:
            allowed = f"one of the tensors of a payload of kind {payload.kind}"
            refuse("unknown_tensor", source, f"{name}.{key}", found="not known", allowed=allowed)
