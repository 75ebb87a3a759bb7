from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from builder.errors import UsageError
from builder.experts.dispatch import dispatch_slots, dispatch_top1, mix_slots, token_groups
from tests.experts.tiny_models import Scaled

QUICK = settings(deadline=None, max_examples=60)
CANDIDATES = 5
WIDTH, INNER = 8, 12
LEADING = [(), (0,), (1,), (2,), (9,), (1, 1), (2, 3), (3, 0, 2), (1, 7), (2, 1, 4)]


@st.composite
def leading_and_routes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int]]:
    leading = draw(st.sampled_from(LEADING))
    count = torch.Size(leading).numel()
    route = st.integers(0, CANDIDATES - 1)
    return leading, draw(st.lists(route, min_size=count, max_size=count))


def numbered(leading: tuple[int, ...], width: int, dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(leading).numel() * width
    return (torch.arange(count) % 61 - 30).to(dtype).reshape(*leading, width)


@QUICK
@given(
    leading_and_routes(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    st.booleans(),
)
def test_each_token_comes_back_to_its_place_through_its_candidate(
    case: tuple[tuple[int, ...], list[int]], dtype: torch.dtype, grad: bool
) -> None:
    leading, routes = case
    candidates = [Scaled(factor) for factor in range(1, CANDIDATES + 1)]
    hidden = numbered(leading, 3, dtype)
    with torch.set_grad_enabled(grad):
        output = dispatch_top1(hidden, torch.tensor(routes, dtype=torch.int64), candidates)
    factors = torch.tensor([route + 1 for route in routes], dtype=dtype).reshape(*leading, 1)
    assert output.dtype == dtype
    assert torch.equal(output, hidden * factors)
    for candidate, module in enumerate(candidates):
        assert module.token_count == routes.count(candidate)
        assert module.call_count == (1 if candidate in routes or (not routes and candidate == 0) else 0)


@QUICK
@given(st.data(), st.integers(0, 7))
def test_slots_are_mixed_and_each_needed_candidate_is_called_once(data: st.DataObject, tokens: int) -> None:
    route = st.integers(0, CANDIDATES - 1)
    pairs = st.tuples(route, route).filter(lambda pair: pair[0] != pair[1] or pair[0] == 0)
    routes = data.draw(st.lists(pairs, min_size=tokens, max_size=tokens))
    quarters = st.tuples(st.integers(0, 4), st.integers(0, 4))
    weights = [
        (a / 4 * (first > 0), b / 4 * (second > 0))
        for (first, second), (a, b) in zip(
            routes, data.draw(st.lists(quarters, min_size=tokens, max_size=tokens)), strict=True
        )
    ]
    candidates = [Scaled(factor) for factor in range(1, CANDIDATES + 1)]
    hidden = numbered((tokens,), 3, torch.float32)
    shape = (tokens, 2)
    output = dispatch_slots(
        hidden, torch.tensor(routes).long().reshape(shape), torch.tensor(weights).reshape(shape), candidates
    )
    wanted = [
        1.0 if pair == (0, 0) else sum(w * (c + 1) for c, w in zip(pair, weight, strict=True) if c)
        for pair, weight in zip(routes, weights, strict=True)
    ]
    assert torch.equal(output, hidden * torch.tensor(wanted).reshape(-1, 1))
    used = [c for pair in routes for c in pair if c] + [0 for pair in routes if pair == (0, 0)]
    for candidate, module in enumerate(candidates[1:], start=1):
        assert (module.call_count, module.token_count) == (candidate in used, used.count(candidate))
    assert candidates[0].token_count == used.count(0)


def mixtral_experts(seed: int) -> MixtralExperts:
    config = MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_local_experts=CANDIDATES,
        experts_implementation="eager",
    )
    experts = MixtralExperts(config)
    generator = torch.Generator().manual_seed(seed)
    for parameter in experts.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return experts


def calls_of(experts: MixtralExperts) -> list:
    """The same experts as separate candidates."""

    def call(number: int):
        def run(tokens: torch.Tensor) -> torch.Tensor:
            gate, up = functional.linear(tokens, experts.gate_up_proj[number]).chunk(2, dim=-1)
            return functional.linear(experts.act_fn(gate) * up, experts.down_proj[number])

        return run

    return [call(number) for number in range(CANDIDATES)]


@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_top1_equals_the_sparse_experts_of_transformers_with_gradients(tokens: int) -> None:
    experts = mixtral_experts(seed=tokens)
    routes = torch.randint(0, CANDIDATES, (tokens,), generator=torch.Generator().manual_seed(tokens))
    ours, theirs = (torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    ours.requires_grad_(), theirs.requires_grad_()
    output = dispatch_top1(ours, routes, calls_of(experts))
    wanted = experts(theirs, routes[:, None], torch.ones(tokens, 1))
    torch.testing.assert_close(output, wanted)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    parameters = list(experts.parameters())
    gradients = torch.autograd.grad((output * upstream).sum(), [ours, *parameters])
    wanted_gradients = torch.autograd.grad((wanted * upstream).sum(), [theirs, *parameters])
    for gradient, wanted_gradient in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted_gradient)


def test_two_slots_equal_the_top_2_experts_of_transformers() -> None:
    experts = mixtral_experts(seed=9)
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(20, WIDTH, generator=generator)
    scores = torch.randn(20, CANDIDATES - 1, generator=generator)
    weights, routes = scores.softmax(dim=1).topk(2, dim=1)
    routes = routes + 1  # candidate 0, the anchor, takes part only where there is no expert
    output = mix_slots(hidden, routes, routes > 0, weights, calls_of(experts))
    torch.testing.assert_close(output, experts(hidden, routes, weights))


def test_a_route_that_is_no_candidate_is_refused() -> None:
    for routes in ([3], [0, 3]):
        with pytest.raises(UsageError, match="must be from 0 to 2") as caught:
            dispatch_top1(torch.zeros(len(routes), 2), torch.tensor(routes), [Scaled(1)] * 3)
        assert caught.value.code == "route_unknown"


def test_groups_are_in_candidate_order_and_positions_ascend() -> None:
    groups = token_groups(torch.tensor([2, 0, 2, 2, 0]), 4)
    assert [(candidate, positions.tolist()) for candidate, positions in groups] == [
        (0, [1, 4]),
        (2, [0, 2, 3]),
    ]


@pytest.mark.parametrize("leading", [(6,), (2, 3), (1, 2, 3)])
def test_a_module_sees_as_many_dimensions_as_the_input_has(leading: tuple[int, ...]) -> None:
    shapes = []

    def module(tokens: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(tokens.shape))
        return tokens

    routes = torch.tensor([0, 1, 1, 0, 1, 0])
    ones = (1,) * (len(leading) - 1)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert dispatch_top1(torch.zeros(*leading, 4), routes, [module, module]).shape == (*leading, 4)
    assert shapes == [(*ones, 3, 4)] * 4
