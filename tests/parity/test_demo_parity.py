"""The demo family through programs that share no code: the same routes, the same tokens, the same logits.

A greedy answer is compared by teacher forcing: if another program, given our ids so far, prefers our next id
at every step, then it would have said the same by itself. One forward pass per answer replaces one per
token.
"""

from __future__ import annotations

import functools
import json
from collections import Counter

import pytest

from builder.reference.generation import generate
from builder.reference.prompts import PromptTemplate, clean_turn, render_prompt
from builder.reference.router import choose
from builder.runtime.interface import Sampling
from tests.conftest import DEMO
from tests.parity.compare import (
    REFERENCE_TO_JAX,
    SCORE_TO_JAX,
    compare_by_forcing,
    forced_score,
)
from tests.parity.conftest import ReferenceShelf
from tests.parity.oracle_jax import JaxOracle
from tests.parity.oracle_needle_rs import NeedleRsOracle
from tests.parity.recording import read_conversations, run_conversations

pytestmark = pytest.mark.slow
SLIDING_WINDOW = 128
ANSWER_TOKENS = 30
UNCACHED = {"joke", "follow-up-home", "odd-sum"}


def test_the_conversations_reach_every_corner(truth):
    assert len(read_conversations()) >= 40
    effective = {response.record.ids[response.record.effective] for response in truth}
    assert effective == {"base", "home", "kitchen", "media", "calendar"}
    reasons = {response.record.reason for response in truth}
    # A call that is held to its tools is never broken.
    assert reasons == {"none", "context_full", "answer_truncated"}
    codes = {response.answer.error_code for response in truth}
    assert codes >= {None, "context_full", "empty_turn"}
    assert any(response.answer.function_calls == [] and response.answer.type == "call" for response in truth)
    answered = [log for response in truth for log in response.sessions if log.drawn_ids]
    assert any(len(log.prompt_ids) > SLIDING_WINDOW for log in answered)
    assert any(len(log.drawn_ids) > SLIDING_WINDOW - 1 for log in answered)


def test_routes_are_the_labels_of_the_demo(engine_run):
    labels = {}
    for conversation in json.loads((DEMO / "conversations.json").read_text("utf-8")):
        for turn, said in enumerate(conversation["turns"]):
            labels[f"demo-{conversation['id']}", turn] = (said["user"], said["route"])
    found = {(r.conversation, r.turn): r.record.ids[r.record.effective] for r in engine_run}
    wrong = {key: (*label, found[key]) for key, label in labels.items() if found[key] != label[1]}
    assert wrong == {}


@pytest.fixture(scope="module")
def jax_logits(demo_family):
    """(member, ids) -> logits of every position; asked often for the same router prompts."""
    oracle = functools.cache(lambda member: JaxOracle(demo_family.folder / f"{member}.cact"))

    @functools.lru_cache(maxsize=64)
    def logits(member, ids):
        return oracle(member).logits(ids)

    return lambda member: lambda ids: logits(member, tuple(ids))


def test_jax_draws_the_same_tokens_from_the_same_logits(truth, jax_logits):
    other_tokens, distances = compare_by_forcing(truth, jax_logits)
    assert other_tokens == []
    assert len(distances) > 70
    assert max(distances) <= REFERENCE_TO_JAX


def test_jax_scores_every_candidate_alike_and_takes_the_same_route(truth, jax_logits):
    other_routes, differences = [], []
    for response in truth:
        for log in response.sessions:
            if log.scores:
                logs = [forced_score(jax_logits(log.member), log, ids) for ids, _ in log.scores]
                scores = [value - logs[0] for value in logs]
                differences += [abs(a - b) for a, b in zip(scores, response.record.scores, strict=True)]
                if choose(scores) != response.record.selected:
                    other_routes.append(response.name)
    assert other_routes == []
    assert len(differences) > 300
    assert max(differences) <= SCORE_TO_JAX


def test_the_full_history_gives_the_same_tokens_as_the_cache(truth, full_history):
    other_tokens, distances = compare_by_forcing(truth, full_history)
    assert other_tokens == []
    assert max(distances) <= REFERENCE_TO_JAX


def test_a_dispatcher_without_any_cache_says_the_same(truth, family, demo_family):
    some = [conversation for conversation in read_conversations() if conversation["id"] in UNCACHED]
    found = run_conversations(family, ReferenceShelf(demo_family.folder, use_cache=False), some)
    expected = {response.name: response for response in truth}
    for response in found:
        assert response.answer.token_ids == expected[response.name].answer.token_ids
        assert response.record.effective == expected[response.name].record.effective
    assert len(found) == 6


def test_needle_rs_says_the_same_where_its_prompt_can_be_ours(
    truth, demo_family, reference_shelf, full_history
):
    members = [member.id for member in demo_family.family.members]
    engines = {member: NeedleRsOracle(demo_family.folder / f"{member}.cact") for member in members}
    different, compared = [], Counter()
    for member, prompt_ids in {(log.member, tuple(log.prompt_ids)) for r in truth for log in r.sessions}:
        model = reference_shelf.open(member)
        prompt = model.decode(prompt_ids)
        if "<tools>" not in prompt:
            continue  # the base has none, and needle-rs always writes them
        theirs = engines[member].generate(prompt, ANSWER_TOKENS, model.info.tool_call_close_id)
        forced = full_history(member)([*prompt_ids, *theirs[:-1]])[len(prompt_ids) - 1 :]
        compared[member] += 1
        if forced.argmax(-1).tolist() != theirs:
            different.append((member, prompt))
    assert different == []
    assert compared["router"] > 60
    assert all(compared[member] > 5 for member in members if member != "base")


def test_needle_rs_says_the_same_as_the_base_about_an_empty_list_of_tools(demo_family, reference_shelf):
    base, engine = reference_shelf.open("base"), NeedleRsOracle(demo_family.folder / "base.cact")
    turns = [clean_turn(conversation["turns"][0]) for conversation in read_conversations()[:50:4]]
    for query in turns:
        prompt = render_prompt(PromptTemplate(tools="[]"), [query], 0)
        ours = generate(base, [base.info.bos_id, *base.encode(prompt)], ANSWER_TOKENS, Sampling()).token_ids
        assert engine.generate(prompt, ANSWER_TOKENS, base.info.tool_call_close_id) == ours
