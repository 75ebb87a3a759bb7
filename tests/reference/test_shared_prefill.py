from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
import torch

from builder.reference import shared_prefill
from builder.reference.model import NeedleModel
from builder.reference.session import PREFILL_TOKENS, CachedSession
from builder.reference.shared_prefill import SharedPrefill

FIRST_CHANGED = 3
PROMPT = list(range(20, 20 + 2 * PREFILL_TOKENS + 9))
OTHER = [*PROMPT[: PREFILL_TOKENS + 4], *range(500, 530)]
"""Has its first block in common with PROMPT."""


@pytest.fixture(scope="module")
def base(random_container):
    return NeedleModel(random_container)


def made_like(base: NeedleModel, first_changed: int) -> NeedleModel:
    """A member whose adapter touched the attention of the layers from `first_changed` on."""
    member = copy.deepcopy(base)
    for block in member.blocks()[first_changed:]:
        block.attention.q_proj.data += 0.05
    return member


@pytest.fixture
def late(base):
    return made_like(base, FIRST_CHANGED)


@pytest.fixture
def run_layers(monkeypatch):
    """Counts how many tokens went through each layer, in all models together."""
    counts: Counter[int] = Counter()
    original = NeedleModel.run_layers

    def counted(self, streams, engrams, past, first, stop):
        counts.update(dict.fromkeys(range(first, stop), streams.shape[1]))
        return original(self, streams, engrams, past, first, stop)

    monkeypatch.setattr(NeedleModel, "run_layers", counted)
    return counts


def logits(network, prompt, shared, answer=(7, 8)):
    """The logits after the prompt and after each token of an answer."""
    session = CachedSession(network, 120, shared=shared)
    session.append(prompt)
    rows = [session.logits()]
    for token_id in answer:
        session.append([token_id])
        rows.append(session.logits())
    return np.stack(rows)


def test_members_agree_up_to_the_first_layer_that_differs(base, late):
    shared = SharedPrefill(base)
    assert shared.register(base) == 5
    assert shared.register(late) == FIRST_CHANGED
    assert shared.register(made_like(base, 0)) == 0


def test_a_member_with_another_embedding_or_geometry_shares_nothing(base):
    other = copy.deepcopy(base)
    other.embedding.data[9, 9] += 1
    assert SharedPrefill(base).register(other) is None
    windowed = copy.deepcopy(base)
    windowed.header = shared_prefill.replace(base.header, sliding_window=20)
    assert SharedPrefill(base).register(windowed) is None
    np.testing.assert_array_equal(logits(other, PROMPT, SharedPrefill(base)), logits(other, PROMPT, None))


def test_a_permutation_that_differs_is_seen(base):
    other = copy.deepcopy(base)
    other.layers[1].mlp.p1 = other.layers[1].mlp.p1.flip(0)
    assert SharedPrefill(base).register(other) == 1


@pytest.mark.slow
@pytest.mark.parametrize("order", ["blb", "lbl", "llb"])
def test_shared_results_are_equal_bit_for_bit_in_any_order(base, late, order):
    shared = SharedPrefill(base)
    members = {"b": base, "l": late}
    for prompt in (PROMPT, OTHER, PROMPT):
        for name in order:
            np.testing.assert_array_equal(
                logits(members[name], prompt, shared), logits(members[name], prompt, None)
            )


def test_common_layers_run_once_per_identical_prefix(base, late, run_layers):
    shared = SharedPrefill(base)
    shared.register(late)
    for network in (base, late, base):
        logits(network, PROMPT, shared, answer=())
    expected = {layer: len(PROMPT) * (1 if layer < FIRST_CHANGED else 2) for layer in range(5)}
    assert run_layers == expected
    logits(late, OTHER, shared, answer=())
    assert run_layers[0] == len(PROMPT) + len(OTHER) - PREFILL_TOKENS


def test_what_ids_alone_decide_is_computed_once_even_if_no_layer_is_common(base, monkeypatch):
    entered: list[int] = []
    original = NeedleModel.enter
    monkeypatch.setattr(
        NeedleModel,
        "enter",
        lambda self, ids, past: entered.append(ids.shape[1]) or original(self, ids, past),
    )
    shared, first = SharedPrefill(base), made_like(base, 0)
    for network in (base, first):
        logits(network, PROMPT, shared, answer=())
    assert sum(entered) == len(PROMPT)


@pytest.mark.slow
def test_the_store_is_bounded_and_forgetting_changes_nothing(base, late, monkeypatch):
    monkeypatch.setattr(shared_prefill, "BLOCK_COUNT_MAX", 2)
    shared = SharedPrefill(base)
    for network in (base, late, base):
        np.testing.assert_array_equal(logits(network, PROMPT, shared), logits(network, PROMPT, None))
        assert len(shared._entries) <= 2


def test_answers_are_never_shared(base, late):
    shared = SharedPrefill(base)
    logits(base, PROMPT, shared)
    blocks = -(-len(PROMPT) // PREFILL_TOKENS)
    assert len(shared._entries) == blocks
    assert torch.is_tensor(next(iter(shared._entries.values())).streams)
