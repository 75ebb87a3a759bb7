"""Modes that packages declare: each layer's output against a per-token loop over real MLPs.

The loop knows the payloads only: it builds each expert's weights itself and runs the anchor with them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from builder.experts import (
    AnchorDeltas,
    ExpertPackage,
    HierarchicalPairs,
    LoraMerge,
    PairTop2,
    RouteTelemetry,
    TransformersCausalLM,
)
from tests.experts.slow_routing import Fallback, best_positive, route_tokens, weigh
from tests.experts.tiny_models import WIDTH, llama, package_for

NAMES = ("x", "y", "z")
LAYER = 1
PAIRS = (("z", "x"), ("y", "z"))
BF16_ERROR = 0.02  # a few roundings of 2^-8 each


def own_weights(anchor: nn.Module, updates: list[tuple[Any, float]]) -> dict[str, Tensor]:
    """The anchor's weights plus weighted LoRA updates."""
    weights = {name: parameter.detach().clone() for name, parameter in anchor.named_parameters()}
    for payload, factor in updates:
        for target in payload.targets:
            a, b = payload.tensors[f"{target}.lora_a"], payload.tensors[f"{target}.lora_b"]
            weights[f"{target}.weight"] += factor * payload.scale * (b @ a)
    return weights


def delta_of(payload: Any, token: Tensor) -> Tensor:
    inner = functional.silu(functional.linear(token, payload.tensors["down.weight"]))
    return functional.linear(inner, payload.tensors["up.weight"]) * payload.scale


def expert_of(anchor: nn.Module, payload: Any, token: Tensor) -> Tensor:
    """The complete MLP of any kind of payload."""
    if payload.kind == "low_rank_delta":
        return anchor(token) + delta_of(payload, token)
    weights = own_weights(anchor, [(payload, 1.0)]) if payload.kind == "lora" else dict(payload.tensors)
    return functional_call(anchor, weights, (token,))


def loop(package: ExpertPackage, anchor: nn.Module, tokens: Tensor, available: list[bool]) -> Tensor:
    """What the layer must give, token by token."""
    payloads = [package.payloads[f"p{LAYER}-{number}"] for number in range(len(NAMES))]
    heads = package.router_heads[LAYER]
    scores = [[float(head.weight @ token + head.bias) for head in heads] for token in tokens]
    fallback = Fallback(lambda _, candidate: available[candidate - 1], None)
    mode = package.mode
    slots = getattr(
        mode, "deltas_max", getattr(mode, "updates_max", 1 if mode.kind == "anchored_top1" else 2)
    )
    combination = getattr(mode, "combination", "softmax")
    if mode.kind == "hierarchical_pairs":
        routes = hierarchical(package, tokens, scores, fallback)
    else:
        routes = route_tokens(scores, slots, fallback, combination)
    rows = []
    for token, slot_routes in zip(tokens, routes, strict=True):
        taken = [(payloads[effective - 1], weight) for _, effective, weight in slot_routes if effective]
        if mode.kind == "anchor_plus_deltas":
            rows.append(anchor(token) + sum(weight * delta_of(payload, token) for payload, weight in taken))
        elif mode.kind == "lora_merge":
            rows.append(functional_call(anchor, own_weights(anchor, taken), (token,)))
        elif mode.kind == "anchored_top1":
            rows.append(expert_of(anchor, taken[0][0], token) if taken else anchor(token))
        else:
            mixed = [weight * expert_of(anchor, payload, token) for payload, weight in taken]
            rows.append(sum(mixed) if mixed else anchor(token))
    return torch.stack(rows)


def hierarchical(package: ExpertPackage, tokens: Tensor, scores: Any, fallback: Fallback) -> list[Any]:
    pair_heads = list(package.pair_heads[LAYER].values())
    routes = []
    for index, token in enumerate(tokens):
        chosen = best_positive([float(head.weight @ token + head.bias) for head in pair_heads], set())
        members = [NAMES.index(name) + 1 for name in PAIRS[chosen - 1]] if chosen else []
        effective = [fallback(index, member) for member in members]
        alive = [member for member in effective if member]
        weights = iter(weigh([scores[index][member - 1] for member in alive], "softmax") if alive else [])
        routes.append([(m, e, next(weights) if e else 0.0) for m, e in zip(members, effective, strict=True)])
    return routes


CASES = [
    ("full_mlp", None),
    ("lora", None),
    ("low_rank_delta", None),
    ("full_mlp", PairTop2()),
    ("lora", PairTop2()),
    ("full_mlp", HierarchicalPairs()),
    ("low_rank_delta", AnchorDeltas()),
    ("low_rank_delta", AnchorDeltas(combination="softmax")),
    ("low_rank_delta", AnchorDeltas(deltas_max=1, combination="sigmoid")),
    ("lora", LoraMerge()),
    ("lora", LoraMerge(combination="sigmoid")),
    ("lora", LoraMerge(updates_max=1, combination="unit")),
]


def synchronised(
    kind: str, mode: Any, dtype: torch.dtype = torch.float32
) -> tuple[TransformersCausalLM, Any]:
    model = TransformersCausalLM(llama(dtype=dtype))
    pairs = PAIRS if isinstance(mode, HierarchicalPairs) else ()
    package = package_for(model, "p", NAMES, seed=3, kind=kind, mode=mode, pairs=pairs)
    model.install(package)
    model.synchronize_registry(record_routes=True, invocations_max=2)
    return model, package


@pytest.mark.parametrize(
    "available", [(True, True, True), (True, False, True), (False, True, False), (False,) * 3]
)
@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_a_declared_mode_computes_what_the_loop_computes(
    kind: str, mode: Any, available: tuple[bool, ...]
) -> None:
    model, package = synchronised(kind, mode)
    routed = model.routed_layers[LAYER]
    hidden = torch.randn(2, 25, WIDTH, generator=torch.Generator().manual_seed(1))
    wanted = loop(package, routed.anchor, hidden.reshape(-1, WIDTH), list(available)).reshape(hidden.shape)
    flags = torch.tensor(available)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            output = routed(hidden, expert_availability=flags)
        torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-4)
    if not any(available):
        assert torch.equal(output, routed.anchor(hidden))


@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_modes_run_in_bf16(kind: str, mode: Any) -> None:
    model, _ = synchronised(kind, mode, torch.bfloat16)
    exact, _ = synchronised(kind, mode)
    routed, wanted = model.routed_layers[LAYER], exact.routed_layers[LAYER]
    hidden = torch.randn(1, 40, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.no_grad():
        output, reference = routed(hidden), wanted(hidden.float())
    assert output.dtype == torch.bfloat16
    assert (output.float() - reference).norm() < BF16_ERROR * reference.norm()


@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_recorders_are_attached_on_request_and_count_what_ran(kind: str, mode: Any) -> None:
    model, _ = synchronised(kind, mode)
    hidden = torch.randn(1, 30, WIDTH, generator=torch.Generator().manual_seed(2))
    for _ in range(3):
        model.routed_layers[LAYER](hidden, expert_availability=torch.tensor([True, False, True]))
    recorder = model.route_telemetry[LAYER]
    assert isinstance(recorder, RouteTelemetry)
    summary = recorder.summarize()
    assert (summary.invocation_count, summary.token_count) == (2, 60)  # bounded by 2
    assert summary.anchor_count + summary.expert_count == 60
    assert summary.expert_count > 0
    assert summary.overflow_count > 0
    assert recorder.records[0].expert_ids == NAMES
    model.synchronize_registry()
    assert model.route_telemetry == {}


@pytest.mark.parametrize(("kind", "mode"), [case for case in CASES if not isinstance(case[1], LoraMerge)])
def test_experts_that_no_token_takes_are_never_run(kind: str, mode: Any) -> None:
    model, _ = synchronised(kind, mode)
    runtime = model.board.current.by_layer[LAYER]
    routed = model.routed_layers[LAYER]
    calls = []
    for number, expert in enumerate(runtime.calls):
        expert.register_forward_hook(
            lambda _module, arguments, _output, n=number: calls.append((n, arguments[0].shape[:-1].numel()))
        )
    hidden = torch.randn(1, 30, WIDTH, generator=torch.Generator().manual_seed(2))
    routed(hidden, expert_availability=torch.tensor([True, False, False]))
    record = model.route_telemetry[LAYER].records[-1]
    executed = record.effective[record.effective > 0]
    assert set(executed.tolist()) == {1}
    assert calls == [(0, len(executed))]


def test_a_lora_update_touches_only_the_rows_that_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.experts.lora_runtime import LoraExpert

    model, _ = synchronised("lora", LoraMerge())
    asked = []
    factors = LoraExpert.factors
    monkeypatch.setattr(
        LoraExpert, "factors", lambda self, target: asked.append(self) or factors(self, target)
    )
    hidden = torch.randn(1, 30, WIDTH, generator=torch.Generator().manual_seed(2))
    model.routed_layers[LAYER](hidden, expert_availability=torch.tensor([False, True, False]))
    assert {id(expert) for expert in asked} == {id(model.board.current.by_layer[LAYER].calls[1])}


def test_gradients_go_through_merged_updates() -> None:
    model, package = synchronised("lora", LoraMerge())
    routed = model.routed_layers[LAYER]
    tokens = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(5))
    upstream = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(6))
    ours, theirs = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()
    (routed(ours) * upstream).sum().backward()

    anchor, heads = routed.anchor, package.router_heads[LAYER]
    effective = model.route_telemetry[LAYER].records[-1].effective
    rows = []
    for token, route in zip(theirs, effective.tolist(), strict=True):
        alive = [candidate for candidate in route if candidate]
        scores = torch.stack(
            [heads[c - 1].weight @ token + heads[c - 1].bias for c in alive] or [token.sum()]
        )
        output_weights = scores.softmax(0)
        weights = {name: parameter.detach() for name, parameter in anchor.named_parameters()}
        for candidate, weight in zip(alive, output_weights, strict=False):
            payload = package.payloads[f"p{LAYER}-{candidate - 1}"]
            for target in payload.targets:
                a, b = payload.tensors[f"{target}.lora_a"], payload.tensors[f"{target}.lora_b"]
                key = f"{target}.weight"
                weights[key] = weights[key] + weight * payload.scale * (b @ a)
        rows.append(functional_call(anchor, weights, (token,)))
    (torch.stack(rows) * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
