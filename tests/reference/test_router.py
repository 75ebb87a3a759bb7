from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import SessionError
from builder.reference.prompts import PromptTemplate
from builder.reference.router import call_ids, call_text, choose, score_candidates
from tests.reference.golden_cases import named
from tests.reference.scripted_model import CALL, FIRST_CHARACTER, ScriptedModel


@pytest.mark.parametrize("case", **named("calls"))
def test_calls_are_spelt_as_written_down(case):
    assert [call_text(None), *map(call_text, case["ids"])] == case["texts"]


@pytest.mark.parametrize("case", **named("routes"))
def test_a_candidate_is_chosen_as_written_down(case):
    ids = [f"s{i}" for i in range(1, len(case["log_probabilities"]))]
    texts = [call_text(None), *map(call_text, ids)]
    model = ScriptedModel(log_probabilities=dict(zip(texts, case["log_probabilities"], strict=True)))
    scores = score_candidates(model, PromptTemplate(), ids, ["hello"])
    assert scores == case["scores"]
    assert choose(scores) == case["selected"]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, 1.0, math.nan]), max_size=6))
def test_a_specialist_wins_only_with_the_first_best_positive_score(specialists):
    scores = [0.0, *specialists]
    chosen = choose(scores)
    if chosen == 0:
        assert not any(score > 0 for score in specialists)
    else:
        assert scores[chosen] > 0
        assert not any(score > scores[chosen] for score in scores)
        assert scores.index(scores[chosen]) == chosen


def test_the_router_prompt_leaves_room_for_the_longest_call_only():
    ids = ["a", "longest"]
    texts = {call_text(candidate): -1.0 for candidate in (None, *ids)}
    longest = len(call_ids(ScriptedModel(), "longest"))
    prompt = len(ScriptedModel().encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")) + 1
    fits = ScriptedModel(log_probabilities=texts, max_seq_len=prompt + longest)
    assert score_candidates(fits, PromptTemplate(), ids, ["hi"]) == [0.0, 0.0, 0.0]
    too_small = ScriptedModel(log_probabilities=texts, max_seq_len=prompt + longest - 1)
    with pytest.raises(SessionError) as caught:
        score_candidates(too_small, PromptTemplate(), ids, ["hi"])
    assert caught.value.code == "context_full"


class DummyPrefixModel(ScriptedModel):
    """A tokenizer that puts a mark before every text that it encodes, as SentencePiece may."""

    def encode(self, text: str) -> list[int]:
        return [ord("▁") + FIRST_CHARACTER, *super().encode(text)]


def test_a_call_has_no_dummy_prefix_in_the_middle_of_a_text():
    assert call_ids(DummyPrefixModel(), "home")[0] == CALL
    assert call_ids(DummyPrefixModel(), "home") == call_ids(ScriptedModel(), "home")
