"""The cheaper form of the gated MLP: when it is taken, and that it computes the same."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from builder.experts import onednn_linear
from builder.experts.lean_mlp import LeanGatedMlp, lean_or_same
from builder.experts.onednn_linear import WEIGHT_NUMBERS_MIN

WIDTH, INNER = 32, 48
LARGE_INNER = WEIGHT_NUMBERS_MIN // WIDTH


def llama_mlp(
    act: str = "silu", *, bias: bool = False, dtype: torch.dtype = torch.float32, inner: int = INNER
) -> LlamaMLP:
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=WIDTH, intermediate_size=inner, hidden_act=act, mlp_bias=bias)
    return LlamaMLP(config).to(dtype)


def tokens(rows: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(1, rows, WIDTH, generator=torch.Generator().manual_seed(rows)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("act", ["silu", "gelu", "relu"])
@pytest.mark.parametrize("bias", [False, True])
def test_it_gives_the_same_bits_as_the_module_that_it_replaces(
    act: str, bias: bool, dtype: torch.dtype
) -> None:
    plain = llama_mlp(act, bias=bias, dtype=dtype)
    lean = lean_or_same(plain)
    assert isinstance(lean, LeanGatedMlp)
    for rows in (0, 1, 2, 5, 17):
        x = tokens(rows, dtype)
        before = x.clone()
        with torch.no_grad():
            found = lean(x)
            assert found.shape == (1, rows, WIDTH)
            assert torch.equal(found, plain(x))
        assert torch.equal(x, before)  # what is overwritten is its own


@pytest.mark.parametrize("bias", [False, True])
def test_large_weights_give_the_same_map_within_the_rounding_of_float32(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = llama_mlp(bias=bias, inner=LARGE_INNER)
    lean = lean_or_same(plain)
    assert isinstance(lean, LeanGatedMlp)
    exact = copy.deepcopy(plain).double()
    for rows in (0, 1, 2, 9, 64):
        x = tokens(rows, torch.float32)
        with torch.no_grad():
            wanted = exact(x.double())
            assert (lean(x) - wanted).norm() <= 2e-6 * wanted.norm()  # about 2^-23 for each of three products
            with monkeypatch.context() as without:
                without.setattr(onednn_linear, "HAS_ONEDNN", False)
                assert torch.equal(lean(x), plain(x))


def test_it_takes_part_in_autograd_like_the_module_it_replaces() -> None:
    plain = llama_mlp()
    lean = lean_or_same(plain)
    gradients = []
    for module in (plain, lean):
        x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2)).requires_grad_()
        gradients.append(torch.autograd.grad(module(x).square().sum(), [x, *plain.parameters()]))
    for found, wanted in zip(*gradients, strict=True):
        assert torch.equal(found, wanted)


def gated(forward: Callable[[nn.Module, Tensor], Tensor], extra: nn.Module | None = None) -> nn.Module:
    """A module with a Llama MLP's parts and another `forward`."""
    module = type("Gated", (LlamaMLP,), {"forward": forward})(
        LlamaConfig(hidden_size=WIDTH, intermediate_size=INNER)
    )
    if extra is not None:
        module.extra = extra
    return module


def clamped(self: nn.Module, x: Tensor) -> Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=7.0) * self.up_proj(x))


def repaired(self: nn.Module, x: Tensor) -> Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x)).nan_to_num() * self.up_proj(x))


def swapped(self: nn.Module, x: Tensor) -> Tensor:
    return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(WIDTH, WIDTH),
        gated(clamped),  # agrees with the lean form on small numbers
        gated(repaired),  # agrees wherever there is no NaN
        gated(swapped),  # names the same parts
        gated(LlamaMLP.forward, extra=nn.Dropout()),
    ],
    ids=["linear", "clamped", "repaired", "swapped", "with_dropout"],
)
def test_a_module_that_is_anything_else_stays_as_it_is(module: nn.Module) -> None:
    assert lean_or_same(module) is module
