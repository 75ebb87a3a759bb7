"""The gated MLP of Llama, Qwen and Mistral in a form that costs less; for experts only, never for the anchor.

Owns: two ways to compute `down(act(gate(x)) * up(x))` faster while autograd is off.
Does not know: routes, packages.
Source: measured with bench/experts.py, one thread, AMD EPYC.

1. In place: two temporaries less, which is 5 % of a routed layer at 4096 tokens. The same bits.
2. float32 products by `onednn_linear.py`.

The form is taken only where the module's `forward` uses nothing but its four parts, and where a probe agrees.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from builder.experts.onednn_linear import linear_without_autograd

PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
SILU_NAMES = {"SiLU", "SiLUActivation"}  # torch's and transformers' class
PROBE_ROWS = 9
PROBE_ERROR = 1e-4  # relative; float32 products in two orders differ by 1e-6


class LeanGatedMlp(nn.Module):
    """`down(act(gate(x)) * up(x))`."""

    def __init__(
        self, gate_proj: nn.Linear, up_proj: nn.Linear, down_proj: nn.Linear, act_fn: nn.Module
    ) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = gate_proj, up_proj, down_proj, act_fn
        self.is_silu = type(act_fn).__name__ in SILU_NAMES

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        if torch.is_grad_enabled():
            output: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
            return output
        gate = _project(x, self.gate_proj)
        active = functional.silu(gate, inplace=True) if self.is_silu else self.act_fn(gate)
        return _project(active.mul_(_project(x, self.up_proj)), self.down_proj)


def _project(x: Tensor, linear: nn.Linear) -> Tensor:
    """(..., in) -> (..., out), without autograd; a fresh tensor."""
    return linear_without_autograd(x, linear.weight, linear.bias)


def lean_or_same(expert: nn.Module) -> nn.Module:
    """The lean form of `expert` if it has one that agrees with it on a probe, else `expert`."""
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
        found, wanted = lean(probe).float(), expert(probe).float()
    agrees = bool((found - wanted).norm() <= PROBE_ERROR * wanted.norm())  # not where there is a NaN
    return lean if agrees else expert


def _uses_only_its_parts(expert: nn.Module) -> bool:
    """Whether `forward` names its four parts and nothing else: no function, no number such as a limit."""
    code = getattr(type(expert).forward, "__code__", None)
    if code is None or set(code.co_names) != PARTS:
        return False
    return all(constant is None or isinstance(constant, str) for constant in code.co_consts)
