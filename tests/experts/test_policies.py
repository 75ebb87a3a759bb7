from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.experts.policies import (
    Admission,
    anchored_top1,
    anchored_top1_of_one,
    anchored_top2,
    fall_back,
    weigh,
)
from tests.experts.slow_routing import Fallback, route_tokens

QUICK = settings(deadline=None, max_examples=60)
SCORE = st.one_of(
    st.integers(-2, 3).map(float), st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0])
)


@st.composite
def decisions(draw: st.DrawFn) -> dict:
    tokens, experts = draw(st.integers(0, 8)), draw(st.integers(1, 5))
    row = st.lists(SCORE, min_size=experts, max_size=experts)
    flags = st.lists(st.booleans(), min_size=experts, max_size=experts)
    return {
        "scores": draw(st.lists(row, min_size=tokens, max_size=tokens)),
        "available": draw(st.one_of(st.none(), flags, st.lists(flags, min_size=tokens, max_size=tokens))),
        "capacity": draw(
            st.one_of(st.none(), st.lists(st.integers(0, 4), min_size=experts, max_size=experts))
        ),
        "experts": experts,
    }


def admission_of(case: dict) -> Admission:
    per_token = (
        case["available"] is not None and len(case["available"]) and isinstance(case["available"][0], list)
    )
    availability = None
    if case["available"] is not None:
        shape = (-1, case["experts"]) if per_token or not case["available"] else (-1,)
        availability = torch.tensor(case["available"], dtype=torch.bool).reshape(shape)
    capacity = None if case["capacity"] is None else torch.tensor(case["capacity"])
    return Admission(availability, capacity)


def slow_fallback(case: dict) -> Fallback:
    def available(token: int, candidate: int) -> bool:
        flags = case["available"]
        if flags is None:
            return True
        return flags[token][candidate - 1] if isinstance(flags[0], list) else flags[candidate - 1]

    return Fallback(available, case["capacity"])


@QUICK
@given(decisions(), st.sampled_from([1, 2]), st.sampled_from(["softmax", "unit", "sigmoid"]))
def test_a_route_is_what_the_slow_rules_say(case: dict, slots: int, combination: str) -> None:
    scores = torch.tensor(case["scores"]).reshape(-1, case["experts"])
    selected, selected_scores = anchored_top2(scores)
    route = weigh(fall_back(selected[:, :slots], selected_scores[:, :slots], admission_of(case)), combination)
    if slots == 1:
        alone = fall_back(*anchored_top1(scores), admission_of(case))
        assert alone.selected.tolist() == route.selected[:, 0].tolist()
        assert alone.effective.tolist() == route.effective[:, 0].tolist()
        assert alone.scores.tolist() == route.scores[:, 0].tolist()
        assert [anchored_top1_of_one(row) for row in scores.tolist()] == alone.selected.tolist()

    clamped = [[min(s, torch.finfo(torch.float32).max) for s in row] for row in case["scores"]]
    wanted = route_tokens(clamped, slots, slow_fallback(case), combination if slots else "unit")
    for token, slots_wanted in enumerate(wanted):
        for slot, (selected_wanted, effective_wanted, weight) in enumerate(slots_wanted):
            assert int(route.selected[token, slot]) == selected_wanted
            assert int(route.effective[token, slot]) == effective_wanted
            assert bool(route.overflow[token, slot]) == (selected_wanted != effective_wanted)
            assert float(route.weights[token, slot]) == pytest.approx(weight, abs=1e-6)
            score = case["scores"][token][selected_wanted - 1] if selected_wanted else 0.0
            assert float(route.scores[token, slot]) == score


def test_ties_go_to_the_lower_candidate_wherever_they_stand() -> None:
    for experts in (2, 3, 16, 17, 64, 257):
        scores = torch.full((33, experts), 0.5)
        scores[:, 0] = -1.0
        assert set(anchored_top1(scores)[0].tolist()) == {2}
        if experts > 2:
            assert anchored_top2(scores)[0].unique(dim=0).tolist() == [[2, 3]]


def test_a_score_of_zero_is_no_evidence() -> None:
    assert anchored_top1(torch.tensor([[0.0, -0.0]]))[0].tolist() == [0]


def test_a_lone_survivor_of_softmax_weighs_exactly_one() -> None:
    scores = torch.tensor([[1e-30, 3e38], [7.0, 3.0]])
    selected, selected_scores = anchored_top2(scores)
    first_gone = Admission(availability=torch.tensor([[True, False], [False, True]]))
    route = weigh(fall_back(selected, selected_scores, first_gone), "softmax")
    assert route.weights.tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_weights_have_a_finite_gradient_where_nobody_survives() -> None:
    scores = torch.tensor([[1.0, 2.0], [1.0, -2.0], [-1.0, -2.0]], requires_grad=True)
    nobody = Admission(availability=torch.tensor([False, False]))
    for admission in (Admission(), nobody):
        weigh(fall_back(*anchored_top2(scores), admission), "softmax").weights.square().sum().backward()
        assert scores.grad.isfinite().all()


def test_a_full_expert_takes_earlier_tokens_and_sends_later_ones_to_the_anchor() -> None:
    selected = torch.tensor([1, 2, 1, 1, 2, 0])
    route = fall_back(selected, torch.ones(6), Admission(capacity=torch.tensor([2, 1])))
    assert route.effective.tolist() == [1, 2, 1, 0, 0, 0]
    assert route.overflow.tolist() == [False, False, False, True, True, False]


def test_an_unavailable_expert_uses_no_capacity() -> None:
    selected = torch.tensor([1, 1])
    admission = Admission(torch.tensor([[False], [True]]), torch.tensor([1]))
    assert fall_back(selected, torch.ones(2), admission).effective.tolist() == [0, 1]
