from __future__ import annotations

import numpy as np
import pytest

from builder.errors import SessionError
from builder.reference.generation import generate
from builder.runtime.interface import Sampling
from tests.reference.scripted_model import EOS, MARKERS, ScriptedModel


def answer(script: str, max_new_tokens: int = 100, **options):
    model = ScriptedModel(script, max_seq_len=options.pop("max_seq_len", 1000))
    made = generate(model, model.encode("ask:"), max_new_tokens, Sampling(), **options)
    return model.decode(made.token_ids), made.stop_reason


def test_the_closing_marker_of_a_call_is_kept_and_ends_the_answer():
    assert answer("<tool_call>[]</tool_call> and more") == ("<tool_call>[]</tool_call>", "stop")


@pytest.mark.parametrize("marker", ["<|im_end|>", MARKERS[EOS]])
def test_an_end_marker_ends_the_answer_and_is_not_kept(marker):
    assert answer(f"hi{marker} and more") == ("hi", "stop")


def test_an_answer_may_be_empty():
    assert answer("") == ("", "stop")


def test_the_token_limit_cuts_the_answer_and_says_so():
    assert answer("hello", max_new_tokens=3) == ("hel", "length")


def test_an_answer_that_needs_one_more_id_to_end_has_hit_the_limit():
    assert answer("hel", max_new_tokens=3) == ("hel", "length")
    assert answer("hel", max_new_tokens=4) == ("hel", "stop")


def test_a_call_that_closes_with_the_last_allowed_id_is_complete():
    assert answer("[]</tool_call>", max_new_tokens=3) == ("[]</tool_call>", "stop")


def test_a_full_context_cuts_the_answer():
    assert answer("hello", max_seq_len=len("ask:") + 2) == ("hel", "length")


def test_a_prompt_beyond_the_context_is_refused():
    with pytest.raises(SessionError) as caught:
        answer("hello", max_seq_len=3)
    assert caught.value.code == "context_full"


def test_a_user_can_stop_before_any_token():
    assert answer("hello", stopped=lambda: True) == ("", "aborted")


def test_what_was_said_before_a_stop_is_kept():
    said: list[int] = []
    assert answer("hello", on_token=said.append, stopped=lambda: len(said) == 2) == ("he", "aborted")


def test_each_kept_id_is_reported_once_and_the_stopping_one_is_not():
    said: list[int] = []
    text, _ = answer("hi<|im_end|>", on_token=said.append)
    assert ScriptedModel().decode(said) == text == "hi"


def test_logits_are_kept_for_every_choice_when_asked_for():
    model = ScriptedModel("hi")
    made = generate(model, model.encode("ask:"), 9, Sampling(), keep_logits=True)
    assert made.logits is not None
    np.testing.assert_array_equal(made.logits[:, 0], [4, 5, 6])
    assert generate(model, model.encode("ask:"), 9, Sampling()).logits is None


def confidence(script: str, **options) -> float | None:
    model = ScriptedModel(script, max_seq_len=options.pop("max_seq_len", 1000), heads=("confidence",))
    return generate(model, model.encode("ask:"), options.pop("room", 100), Sampling(), **options).confidence


def test_the_confidence_head_hears_the_prompt_and_the_whole_answer():
    """A scripted head says how many ids it heard; an end marker that is not kept is not heard."""
    assert confidence("<tool_call>[]</tool_call>") == pytest.approx((4 + 4) / 1000)
    assert confidence("hi<|im_end|>") == pytest.approx((4 + 2) / 1000)
    assert confidence("") == pytest.approx(4 / 1000)


def test_an_answer_without_an_end_has_no_confidence():
    assert confidence("hello", room=3) is None
    assert confidence("hello", stopped=lambda: True) is None
    assert confidence("[]</tool_call>", max_seq_len=len("ask:") + 2) is None


def test_without_the_head_there_is_no_confidence():
    model = ScriptedModel("hi")
    assert generate(model, model.encode("ask:"), 9, Sampling()).confidence is None
    assert model.sessions[0].heads == ()
