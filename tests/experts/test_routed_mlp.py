"""One routed layer in every mode against the slow per-token loop: shapes, routes, availability, dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from builder.errors import UsageError
from builder.experts import (
    AffineRouterHead,
    IdentityRouterFeatureExtractor,
    RoutedMLP,
    RouterFeatureExtractor,
    RouteTelemetry,
    UnitRmsRouterFeatureExtractor,
    route_shares,
)
from builder.experts.policies import OPEN
from builder.experts.router_heads import ScoreBank
from tests.experts.slow_routing import Fallback, best_positive, route_tokens, scores_of, weigh
from tests.experts.tiny_models import Scaled, SmallMlp

QUICK = settings(deadline=None, max_examples=60)
EXACT_DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
LEADING = [(), (0,), (1,), (3,), (7,), (1, 1), (2, 3), (3, 0), (1, 6), (4, 3)]
NAMES = ("d", "a", "c", "b", "e")


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    """Small whole numbers everywhere, so that scores and outputs are exact in every dtype."""
    number = st.integers(-2, 2).map(float)
    leading = draw(st.sampled_from(LEADING))
    tokens, width, experts = torch.Size(leading).numel(), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    vector = st.lists(number, min_size=width, max_size=width)
    head = st.tuples(vector, number)
    flags = st.lists(st.booleans(), min_size=experts, max_size=experts)
    return {
        "leading": leading,
        "tokens": draw(st.lists(vector, min_size=tokens, max_size=tokens)),
        "heads": draw(st.lists(head, min_size=experts, max_size=experts)),
        "available": draw(st.one_of(st.none(), flags, st.lists(flags, min_size=tokens, max_size=tokens))),
        "capacity": draw(st.one_of(st.none(), st.integers(0, 3))),
        "dtype": draw(st.sampled_from(EXACT_DTYPES)),
        "grad": draw(st.booleans()),
    }


def per_token(case: dict[str, Any]) -> bool:
    return bool(case["available"]) and isinstance(case["available"][0], list)


def hidden_of(case: dict[str, Any]) -> Tensor:
    width = len(case["heads"][0][0])
    return torch.tensor(case["tokens"]).reshape(*case["leading"], width).to(case["dtype"])


def limits_of(case: dict[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {"expert_capacity": case["capacity"]}
    if case["available"] is not None:
        shape = (*case["leading"], -1) if per_token(case) else (-1,)
        if per_token(case) or case["available"]:
            limits["expert_availability"] = torch.tensor(case["available"]).reshape(shape)
    return limits


def fallback_of(case: dict[str, Any]) -> Fallback:
    def available(token: int, candidate: int) -> bool:
        flags = case["available"]
        if not flags:
            return True
        return (flags[token] if per_token(case) else flags)[candidate - 1]

    return Fallback(available, None if case["capacity"] is None else [case["capacity"]] * len(case["heads"]))


def heads_of(case: dict[str, Any]) -> list[AffineRouterHead]:
    return [
        AffineRouterHead(name, torch.tensor(weight), bias)
        for name, (weight, bias) in zip(NAMES, case["heads"], strict=False)
    ]


def configured(case: dict[str, Any], mode: str, **options: Any) -> tuple[RoutedMLP, list[Scaled]]:
    """A layer whose anchor multiplies by 1 and whose candidate i multiplies by i + 1."""
    heads = heads_of(case)
    modules = [Scaled(factor) for factor in range(1, len(heads) + 2)]
    routed = RoutedMLP(modules[0])
    getattr(routed, f"configure_{mode}")(
        layer_index=4,
        router_feature_extractor=IdentityRouterFeatureExtractor(heads[0].width),
        router_heads=heads,
        experts={head.expert_id: module for head, module in zip(heads, modules[1:], strict=True)},
        **options,
    )
    return routed, modules


def check_against_loop(case: dict[str, Any], routed: RoutedMLP, factors: list[float]) -> None:
    with torch.set_grad_enabled(case["grad"]):
        output = routed(hidden_of(case), **limits_of(case))
    wanted = hidden_of(case) * torch.tensor(factors, dtype=torch.float64).reshape(*case["leading"], 1)
    assert output.dtype == case["dtype"]
    assert output.shape == hidden_of(case).shape
    torch.testing.assert_close(output.double(), wanted.double(), rtol=1e-2, atol=1e-6)
    if case["dtype"] in (torch.float32, torch.float64):
        torch.testing.assert_close(output.double(), wanted.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@QUICK
@given(layers())
def test_anchored_top1_is_the_slow_loop_exactly_and_runs_nobody_else(case: dict[str, Any]) -> None:
    routed, modules = configured(case, "anchored_top1")
    scores = [scores_of(token, case["heads"]) for token in case["tokens"]]
    effective = [slots[0][1] for slots in route_tokens(scores, 1, fallback_of(case))]
    with torch.set_grad_enabled(case["grad"]):
        output = routed(hidden_of(case), **limits_of(case))
    factors = torch.tensor([candidate + 1 for candidate in effective]).reshape(*case["leading"], 1)
    assert torch.equal(output, hidden_of(case) * factors)
    assert output.dtype == case["dtype"]
    for candidate, module in enumerate(modules):
        assert module.token_count == effective.count(candidate)
        assert module.call_count <= 1


@pytest.mark.slow
@QUICK
@given(layers())
def test_pair_top2_is_the_slow_loop(case: dict[str, Any]) -> None:
    routed, modules = configured(case, "pair_top2")
    scores = [scores_of(token, case["heads"]) for token in case["tokens"]]
    routes = route_tokens(scores, 2, fallback_of(case))
    factors = [sum(w * (e + 1) for _, e, w in slots if e) or 1.0 for slots in routes]
    check_against_loop(case, routed, factors)
    executed = [e for slots in routes for _, e, _ in slots if e]
    executed += [0 for slots in routes if not any(e for _, e, _ in slots)]
    assert [module.token_count for module in modules] == [executed.count(c) for c in range(len(modules))]


@pytest.mark.slow
@QUICK
@given(layers(), st.sampled_from([1, 2]), st.sampled_from(["unit", "softmax", "sigmoid"]))
def test_anchor_plus_deltas_is_the_slow_loop(case: dict[str, Any], slots: int, combination: str) -> None:
    routed, modules = configured(case, "anchor_deltas", deltas_max=slots, combination=combination)
    scores = [scores_of(token, case["heads"]) for token in case["tokens"]]
    routes = route_tokens(scores, slots, fallback_of(case), combination)
    factors = [1.0 + sum(w * (e + 1) for _, e, w in taken if e) for taken in routes]
    check_against_loop(case, routed, factors)
    executed = [e for taken in routes for _, e, _ in taken if e]
    assert [module.token_count for module in modules[1:]] == [
        executed.count(candidate) for candidate in range(1, len(modules))
    ]
    assert modules[0].token_count == len(case["tokens"])  # the anchor is always on
    assert modules[0].call_count == 1


@pytest.mark.slow
@QUICK
@given(layers().filter(lambda case: len(case["heads"]) >= 2), st.data())
def test_hierarchical_pairs_are_the_slow_loop(case: dict[str, Any], data: st.DataObject) -> None:
    names = NAMES[: len(case["heads"])]
    all_pairs = [(first, second) for first in names for second in names if first != second]
    pairs = data.draw(st.lists(st.sampled_from(all_pairs), min_size=1, max_size=3, unique=True))
    pair_rules = [case["heads"][-1 - index % len(names)] for index in range(len(pairs))]
    pair_heads = {
        pair: AffineRouterHead("+".join(pair), torch.tensor(weight), bias + 1.0)
        for pair, (weight, bias) in zip(pairs, pair_rules, strict=True)
    }
    routed, modules = configured(case, "hierarchical_pairs", pair_heads=pair_heads)

    fallback, factors, executed = fallback_of(case), [], []
    for index, token in enumerate(case["tokens"]):
        chosen = best_positive(scores_of(token, [(w, b + 1.0) for w, b in pair_rules]), set())
        members = [names.index(name) + 1 for name in pairs[chosen - 1]] if chosen else []
        alive = [candidate for candidate in (fallback(index, member) for member in members) if candidate]
        own = scores_of(token, case["heads"])
        weights = weigh([own[candidate - 1] for candidate in alive], "softmax") if alive else []
        executed += alive or [0]
        factors.append(sum(w * (c + 1) for w, c in zip(weights, alive, strict=True)) if alive else 1.0)
    check_against_loop(case, routed, factors)
    assert [module.token_count for module in modules] == [executed.count(c) for c in range(len(modules))]


def layer_of_small_mlps(dtype: torch.dtype = torch.float32, experts: int = 3, width: int = 6) -> RoutedMLP:
    generator = torch.Generator().manual_seed(5)
    routed = RoutedMLP(SmallMlp(width, seed=1, dtype=dtype))
    heads = [AffineRouterHead(name, torch.randn(width, generator=generator)) for name in NAMES[:experts]]
    routed.configure_anchored_top1(
        layer_index=0,
        router_feature_extractor=IdentityRouterFeatureExtractor(width),
        router_heads=heads,
        experts={head.expert_id: SmallMlp(width, 7 + i, dtype) for i, head in enumerate(heads)},
    )
    return routed


@pytest.mark.parametrize("leading", [(0,), (2, 0)])
@pytest.mark.parametrize("mode", ["anchored_top1", "pair_top2", "anchor_deltas", "hierarchical_pairs"])
def test_no_tokens_at_all_are_routed_nowhere(mode: str, leading: tuple[int, ...]) -> None:
    case = {"heads": [([1.0, 0.0], 0.0), ([0.0, 1.0], 0.0)]}
    telemetry = RouteTelemetry(layer_index=4)
    pairs = {("d", "a"): AffineRouterHead("d+a", torch.ones(2))}
    options = {"pair_heads": pairs} if mode == "hierarchical_pairs" else {}
    routed, modules = configured(case, mode, route_telemetry=telemetry, **options)
    for availability in (None, torch.ones(2, dtype=torch.bool), torch.ones(*leading, 2, dtype=torch.bool)):
        output = routed(torch.zeros(*leading, 2), expert_availability=availability, expert_capacity=1)
        assert output.shape == (*leading, 2)
    assert [module.call_count for module in modules[1:]] == [0, 0]
    assert telemetry.summarize().token_count == 0
    assert route_shares(telemetry) == {}


def test_gradients_are_those_of_the_per_token_loop() -> None:
    routed = layer_of_small_mlps(torch.float64)
    hidden = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    hidden.requires_grad_()
    parameters = [p for p in routed.parameters() if p.requires_grad]
    assert len(parameters) == 3 * 4  # the anchor's are frozen
    modules = (routed.anchor, *routed.runtime.calls)
    tokens = hidden.reshape(-1, 6)
    route = routed.runtime.route(tokens, OPEN).effective
    assert len(route.unique()) == 4
    loop = torch.stack([modules[c](token) for c, token in zip(route.tolist(), tokens, strict=True)])
    upstream = torch.randn(2, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    wanted = torch.autograd.grad((loop.reshape(hidden.shape) * upstream).sum(), [hidden, *parameters])
    found = torch.autograd.grad((routed(hidden) * upstream).sum(), [hidden, *parameters])
    for gradient, wanted_gradient in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["pair_top2", "anchor_deltas"])
def test_the_gradient_of_a_mixture_goes_through_its_weights(mode: str) -> None:
    routed = RoutedMLP(SmallMlp(3, seed=1, dtype=torch.float64))
    heads = [AffineRouterHead(n, torch.ones(3), 0.3 * i + 5.0) for i, n in enumerate(("a", "b"))]
    options = {"combination": "sigmoid"} if mode == "anchor_deltas" else {}
    getattr(routed, f"configure_{mode}")(
        layer_index=0,
        router_feature_extractor=_Float64Identity(3),
        router_heads=heads,
        experts={"a": SmallMlp(3, 2, torch.float64), "b": SmallMlp(3, 3, torch.float64)},
        **options,
    )
    runtime = routed.runtime
    for name in ("weight", "bias"):
        setattr(runtime.bank, name, getattr(runtime.bank, name).double())
    hidden = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    # Mixing is done in float32, so the differences are taken with a step that float32 can tell.
    assert torch.autograd.gradcheck(routed, (hidden,), eps=1e-2, atol=2e-3, rtol=2e-2)


class _Float64Identity(RouterFeatureExtractor):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.double()


def test_no_grad_and_grad_give_the_same_output() -> None:
    routed = layer_of_small_mlps()
    hidden = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(4))
    recorded = routed(hidden.clone().requires_grad_())
    with torch.no_grad():
        torch.testing.assert_close(routed(hidden), recorded.detach())
    with torch.inference_mode():
        torch.testing.assert_close(routed(hidden), recorded.detach())
    assert recorded.requires_grad


def test_bf16_routes_are_chosen_in_float32() -> None:
    routed = layer_of_small_mlps(torch.bfloat16)
    weight = routed.runtime.bank.weight.clone()
    hidden = torch.randn(40, 6, generator=torch.Generator().manual_seed(4)).bfloat16()
    wanted = routed.runtime.route(hidden.float(), OPEN).effective
    routed.to(torch.bfloat16)  # would round the heads if they followed the model's dtype
    assert torch.equal(routed.runtime.bank.weight, weight)
    assert torch.equal(routed.runtime.route(hidden, OPEN).effective, wanted)
    assert routed(hidden).dtype == torch.bfloat16


@pytest.mark.parametrize("others", [3, 7, 20])
def test_equal_heads_tie_exactly_whatever_the_batch(others: int) -> None:
    """A plain matrix product gives equal columns unequal sums at these sizes."""
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(37, generator=generator)
    heads = [AffineRouterHead("first", weight)]
    heads += [
        AffineRouterHead(f"other{i}", torch.randn(37, generator=generator), -99.0) for i in range(others)
    ]
    heads += [AffineRouterHead("twin", weight.clone())]
    modules = {head.expert_id: Scaled(2) for head in heads}
    routed = RoutedMLP(Scaled(1))
    routed.configure_anchored_top1(
        layer_index=0,
        router_feature_extractor=IdentityRouterFeatureExtractor(37),
        router_heads=heads,
        experts=modules,
    )
    for tokens in (1, 2, 3, 7, 64, 129):
        routed(torch.randn(tokens, 37, generator=generator))
    assert modules["first"].token_count > 80
    assert modules["twin"].token_count == 0


def test_scores_of_many_tokens_are_those_of_one_within_rounding() -> None:
    generator = torch.Generator().manual_seed(7)
    heads = [AffineRouterHead(f"e{i}", torch.randn(256, generator=generator), 0.1 * i) for i in range(40)]
    bank = ScoreBank(heads)
    features = torch.randn(300, 256, generator=generator)  # enough for another library to be taken
    exact = features.double() @ bank.weight.double().T + bank.bias.double()
    with torch.no_grad():
        one_by_one = torch.cat([bank(feature[None]) for feature in features])
        for scores in (bank(features), one_by_one):
            assert scores.dtype == torch.float32
            assert (scores - exact).norm() <= 2e-6 * exact.norm()
    torch.testing.assert_close(bank(features), one_by_one, rtol=1e-5, atol=1e-4)


def test_without_experts_the_layer_is_its_anchor() -> None:
    anchor = SmallMlp(6, seed=1)
    routed = RoutedMLP(anchor)
    hidden = torch.randn(2, 5, 6)
    assert torch.equal(routed(hidden), anchor(hidden))
    layer = layer_of_small_mlps()
    layer.clear_experts()
    assert torch.equal(layer(hidden), layer.anchor(hidden))


def test_a_forced_anchor_pass_is_the_dense_pass_bit_for_bit() -> None:
    routed = layer_of_small_mlps()
    hidden = torch.randn(4, 33, 6, generator=torch.Generator().manual_seed(8))
    nobody = torch.zeros(3, dtype=torch.bool)
    assert torch.equal(routed(hidden, expert_availability=nobody), routed.anchor(hidden))
    by_name = dict.fromkeys(NAMES[:3], False)
    assert torch.equal(routed(hidden, expert_availability=by_name), routed.anchor(hidden))
    assert torch.equal(routed(hidden, expert_capacity=0), routed.anchor(hidden))


def test_appending_an_expert_moves_no_earlier_candidate() -> None:
    short, long = layer_of_small_mlps(experts=2), layer_of_small_mlps(experts=4)
    assert long.runtime.expert_ids[:2] == short.runtime.expert_ids
    hidden = torch.randn(50, 6, generator=torch.Generator().manual_seed(8))
    scores = long.runtime.scores(hidden)
    torch.testing.assert_close(scores[:, :2], short.runtime.scores(hidden))


def test_unit_rms_features_see_the_direction_only() -> None:
    extractor = UnitRmsRouterFeatureExtractor(4)
    tokens = torch.randn(3, 4)
    torch.testing.assert_close(extractor(tokens), extractor(7 * tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"expert_availability": torch.ones(2)}, "must be bool"),
        ({"expert_availability": torch.ones(2, dtype=torch.bool)}, r"shape: is \(2,\), must be \(3,\)"),
        ({"expert_availability": {"nobody": True}}, "names 'nobody'"),
        ({"expert_capacity": {"nobody": 1}}, "names 'nobody'"),
        ({"expert_capacity": torch.tensor([1, 2])}, "must be"),
        ({"expert_capacity": -1}, "nothing below 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        layer_of_small_mlps()(torch.zeros(5, 6), **limits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"router_heads": []}, "at least one"),
        ({"router_heads": [AffineRouterHead("a", torch.ones(2))] * 2}, "one for each expert"),
        ({"router_heads": [AffineRouterHead("b", torch.ones(2))]}, "are for b, must be for a"),
        ({"router_heads": [AffineRouterHead("a", torch.ones(3))]}, "width: is 3, must be 2"),
        ({"route_telemetry": RouteTelemetry(layer_index=9)}, "layer_index: is 9, must be 1"),
        ({"layer_index": 2}, "layer_index: is 2, must be 1"),
    ],
)
def test_a_configuration_that_does_not_fit_changes_nothing(changes: dict[str, Any], words: str) -> None:
    routed = RoutedMLP(Scaled(1))
    parts: dict[str, Any] = {
        "layer_index": 1,
        "router_feature_extractor": IdentityRouterFeatureExtractor(2),
        "router_heads": [AffineRouterHead("a", torch.ones(2))],
        "experts": {"a": Scaled(2)},
    }
    routed.configure_anchored_top1(**parts)
    before = routed.runtime
    with pytest.raises(UsageError, match=words):
        routed.configure_anchored_top1(**{**parts, **changes})
    assert routed.runtime is before


def test_a_head_that_is_not_one_float32_row_is_refused() -> None:
    with pytest.raises(UsageError, match="is float64, must be float32"):
        AffineRouterHead("a", torch.ones(2, dtype=torch.float64))
    with pytest.raises(UsageError, match="must be \\(F,\\) and \\(\\)"):
        AffineRouterHead("a", torch.ones(2, 2))
    with pytest.raises(UsageError, match="must be \\(F,\\) and \\(\\)"):
        AffineRouterHead("a", torch.ones(2), torch.ones(2))


def test_more_than_two_experts_per_token_are_refused() -> None:
    case = {"heads": [([1.0], 0.0)]}
    with pytest.raises(UsageError, match="is 3, must be 1 or 2"):
        configured(case, "anchor_deltas", deltas_max=3)
