"""The gated MLP of Llama, Qwen and Mistral without two of its temporary tensors.

Owns: one faster form of `down(act(gate(x)) * up(x))`, used for experts only; the anchor is never touched.
Does not know: routes, packages.

At 4096 tokens the two temporaries cost about 5 % of a routed layer on a CPU: memory that is written, read
once and given back. The form is taken only where the module's `forward` uses nothing but its four parts, and
where it gives the same bits on a probe.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
SILU_NAMES = {"SiLU", "SiLUActivation"}  # torch's and transformers' class
PROBE_ROWS = 3


class LeanGatedMlp(nn.Module):
    """`down(act(gate(x)) * up(x))` that multiplies in place while autograd is off."""

    def __init__(
        self, gate_proj: nn.Linear, up_proj: nn.Linear, down_proj: nn.Linear, act_fn: nn.Module
    ) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = gate_proj, up_proj, down_proj, act_fn
        self.is_silu = type(act_fn).__name__ in SILU_NAMES

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        gate = self.gate_proj(x)
        if torch.is_grad_enabled():
            return self._down(self.act_fn(gate) * self.up_proj(x))
        active = functional.silu(gate, inplace=True) if self.is_silu else self.act_fn(gate)
        return self._down(active.mul_(self.up_proj(x)))

    def _down(self, inner: Tensor) -> Tensor:
        output: Tensor = self.down_proj(inner)
        return output


def lean_or_same(expert: nn.Module) -> nn.Module:
    """The lean form of `expert` if it has one that gives the same bits on a probe, else `expert`."""
    children = dict(expert.named_children())
    linear = [children.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    if set(children) != PARTS or not all(isinstance(module, nn.Linear) for module in linear):
        return expert
    if not _uses_only_its_parts(expert):
        return expert
    gate, up, down = (module for module in linear if isinstance(module, nn.Linear))
    lean = LeanGatedMlp(gate, up, down, children["act_fn"])
    probe = torch.linspace(-3, 3, PROBE_ROWS * gate.in_features).reshape(PROBE_ROWS, -1).to(gate.weight)
    with torch.no_grad():
        same = torch.equal(lean(probe), expert(probe))
    return lean if same else expert


def _uses_only_its_parts(expert: nn.Module) -> bool:
    """Whether `forward` names its four parts and nothing else: no function, no number such as a limit."""
    code = getattr(type(expert).forward, "__code__", None)
    if code is None or set(code.co_names) != PARTS:
        return False
    return all(constant is None or isinstance(constant, str) for constant in code.co_consts)
