"""From a payload and the anchor of its layer to a module that can run.

Owns: whether a payload fits an anchor, and the copies that share nothing with it but its structure.
Does not know: packages, routes.
Source: docs/experts.md, "Payloads". Letters: D hidden width, r rank.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from builder.experts.lean_mlp import lean_or_same
from builder.experts.metadata import Activation, refuse
from builder.experts.package_files import dtype_name
from builder.experts.payloads import LORA_A, LORA_B, LoraFactors, LowRankDelta, Payload

ACTIVATIONS = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class LowRankDeltaModule(nn.Module):
    """`scale * up(activation(down(h)))`, (..., D) -> (..., D), frozen."""

    def __init__(
        self, down: Tensor, up: Tensor, activation: Activation = "identity", scale: float = 1.0
    ) -> None:
        super().__init__()
        self.down = nn.Parameter(down, requires_grad=False)  # (r, D)
        self.up = nn.Parameter(up, requires_grad=False)  # (D, r)
        self.activation = ACTIVATIONS[activation]()
        self.scale = scale

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        inner = self.activation(functional.linear(hidden, self.down))  # (..., r)
        return functional.linear(inner, self.up) * self.scale


class AnchorWithDelta(nn.Module):
    """A delta as a complete MLP: `A(h) + delta(h)`. The anchor is borrowed, not registered."""

    anchor: nn.Module

    def __init__(self, anchor: nn.Module, delta: LowRankDeltaModule) -> None:
        super().__init__()
        object.__setattr__(self, "anchor", anchor)
        self.delta = delta

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        anchored, delta = self.anchor(hidden), self.delta(hidden)
        output: Tensor = anchored + delta
        return output


def anchor_sha256(anchor: nn.Module) -> str:
    """Identity of an anchor: SHA-256 over names, dtypes, shapes and bytes of its parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted([*anchor.named_parameters(), *anchor.named_buffers()]):
        digest_tensor(digest, name, tensor)
    return digest.hexdigest()


def digest_tensor(digest: hashlib._Hash, name: str, tensor: Tensor) -> None:
    """Feed one tensor: a line with its name, dtype and shape, then its little-endian bytes."""
    digest.update(f"{name} {dtype_name(tensor.dtype)} {list(tensor.shape)}\n".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy().data)


def materialize_mlp(
    payload: Payload, anchor: nn.Module, hidden_width: int, source: object, name: str
) -> nn.Module:
    """A frozen module that computes the expert's whole MLP. Raises PackageError (package_anchor_mismatch)."""
    if isinstance(payload, LowRankDelta):
        return AnchorWithDelta(anchor, materialize_delta(payload, anchor, hidden_width, source, name))
    if isinstance(payload, LoraFactors):
        return lean_or_same(copy_with(anchor, _merged_weights(payload, anchor, source, name)))
    wanted = dict(anchor.named_parameters())
    for key in [key for key in wanted if key not in payload.tensors]:
        refuse(
            "anchor_mismatch", source, f"{name}.{key}", found="missing", allowed="there: the anchor has it"
        )
    for key, tensor in payload.tensors.items():
        if key not in wanted:
            allowed = "a parameter of the anchor"
            refuse("anchor_mismatch", source, f"{name}.{key}", found="not one", allowed=allowed)
        _check_like(tensor, wanted[key], source, f"{name}.{key}")
    return lean_or_same(copy_with(anchor, payload.tensors))


def materialize_delta(
    payload: Payload, anchor: nn.Module, hidden_width: int, source: object, name: str
) -> LowRankDeltaModule:
    """The delta alone. Raises PackageError (package_payload_kind, package_anchor_mismatch)."""
    if not isinstance(payload, LowRankDelta):
        refuse("payload_kind", source, name, found=payload.kind, allowed="low_rank_delta in this mode")
    like = next(anchor.parameters())
    down, up = payload.tensors["down.weight"], payload.tensors["up.weight"]
    _check_dtype(down, like, source, name)
    if down.shape[1] != hidden_width:
        allowed = f"{hidden_width}, the model's hidden width"
        refuse("anchor_mismatch", source, f"{name}, delta width", found=down.shape[1], allowed=allowed)
    own_down, own_up = (tensor.to(like.device, copy=True) for tensor in (down, up))
    return LowRankDeltaModule(own_down, own_up, payload.activation, payload.scale)


def check_lora(payload: Payload, anchor: nn.Module, source: object, name: str) -> LoraFactors:
    """The payload, if it is LoRA and each target is a linear module of the anchor with fitting sizes.

    Raises PackageError (package_payload_kind, package_anchor_mismatch).
    """
    if not isinstance(payload, LoraFactors):
        refuse("payload_kind", source, name, found=payload.kind, allowed="lora in this mode")
    modules = dict(anchor.named_modules())
    for target in payload.targets:
        linear = modules.get(target)
        if not isinstance(linear, nn.Linear):
            allowed = "a linear module of the anchor"
            refuse("anchor_mismatch", source, f"{name}.{target}", found="not one", allowed=allowed)
        a, b = payload.tensors[target + LORA_A], payload.tensors[target + LORA_B]
        _check_dtype(a, linear.weight, source, f"{name}.{target}")
        if (b.shape[0], a.shape[1]) != tuple(linear.weight.shape):
            found, allowed = f"{(b.shape[0], a.shape[1])}", f"{tuple(linear.weight.shape)}, as the anchor's"
            refuse("anchor_mismatch", source, f"{name}.{target}", found=found, allowed=allowed)
    return payload


def copy_with(anchor: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The anchor's structure with other parameters, frozen, without its hooks; buffers are shared.

    A parameter that `weights` does not name is shared too. Nothing of the anchor is copied on the way.
    """
    memo: dict[int, object] = {id(buffer): buffer for buffer in anchor.buffers()}
    for module in anchor.modules():
        memo.update({id(getattr(module, hooks)): OrderedDict() for hooks in HOOKS})
    for name, parameter in anchor.named_parameters():
        own = weights.get(name)
        memo[id(parameter)] = parameter if own is None else _frozen_copy(own, parameter.device)
    return copy.deepcopy(anchor, memo)


def _frozen_copy(tensor: Tensor, device: torch.device) -> nn.Parameter:
    return nn.Parameter(tensor.to(device, copy=True), requires_grad=False)


def _merged_weights(payload: LoraFactors, anchor: nn.Module, source: object, name: str) -> dict[str, Tensor]:
    """W + scale * B A in float32, rounded once to the anchor's dtype."""
    check_lora(payload, anchor, source, name)
    merged = {}
    for target in payload.targets:
        weight = anchor.get_submodule(target).get_parameter("weight")
        a, b = (payload.tensors[target + suffix].to(weight.device).float() for suffix in (LORA_A, LORA_B))
        merged[f"{target}.weight"] = (weight.detach().float() + payload.scale * (b @ a)).to(weight.dtype)
    return merged


def _check_like(tensor: Tensor, like: Tensor, source: object, field: str) -> None:
    _check_dtype(tensor, like, source, field)
    if tensor.shape != like.shape:
        allowed = f"{tuple(like.shape)}, as the anchor's"
        refuse("anchor_mismatch", source, field, found=f"{tuple(tensor.shape)}", allowed=allowed)


def _check_dtype(tensor: Tensor, like: Tensor, source: object, field: str) -> None:
    if tensor.dtype != like.dtype:
        allowed = f"{dtype_name(like.dtype)}, as the anchor's"
        step = f"convert the package with package.converted(torch.{dtype_name(like.dtype)})"
        found = dtype_name(tensor.dtype)
        refuse("anchor_mismatch", source, field, found=found, allowed=allowed, next_step=step)
