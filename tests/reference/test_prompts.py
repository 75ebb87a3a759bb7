from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needle.model.finetune import render_example

from builder.errors import SessionError
from builder.reference.prompts import (
    PromptTemplate,
    clean_conversation,
    clean_turn,
    count_fixed,
    fit_prompt,
    fixed_part,
    render_prompt,
)
from tests.reference.golden_cases import named
from tests.reference.scripted_model import BOS, ScriptedModel

any_text = st.text(st.characters(codec=None))


@pytest.mark.parametrize("case", **named("clean"))
def test_a_turn_is_cleaned_as_written_down(case):
    assert clean_turn(case["turn"]) == case["cleaned"]


@pytest.mark.parametrize("case", **named("conversations"))
def test_a_conversation_is_cleaned_as_written_down(case):
    if case["query"]:
        assert clean_conversation(case["turns"]) == [*case["earlier"], case["query"]]
    else:
        with pytest.raises(SessionError, match="empty") as caught:
            clean_conversation(case["turns"])
        assert caught.value.code == "empty_turn"


def test_a_conversation_without_turns_is_refused():
    with pytest.raises(SessionError, match="empty"):
        clean_conversation([])


@pytest.mark.parametrize("case", **named("prompts"))
def test_a_prompt_is_rendered_as_written_down(case):
    template, turns = PromptTemplate(**case["prompt"]), clean_conversation(case["turns"])
    most = min(template.context_turns, len(turns) - 1)
    assert [render_prompt(template, turns, count) for count in range(most, -1, -1)] == case["texts"]


@settings(deadline=None, max_examples=50)
@given(any_text)
def test_cleaning_twice_changes_nothing_and_the_result_is_utf8(turn):
    cleaned = clean_turn(turn)
    assert clean_turn(cleaned) == cleaned
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert "\r" not in cleaned


@pytest.mark.parametrize("system", ["", "be kind"])
@pytest.mark.parametrize("query", ["hello", "naïve 日本 \U0001f4a1"])
def test_a_prompt_with_tools_is_what_upstream_trains_on(system, query):
    tools = '[{"name":"set_light","description":"é"}]'
    example = {"query": query, "tools": tools, "answers": "[]"} | ({"system": system} if system else {})
    upstream, _ = render_example(example)
    assert render_prompt(PromptTemplate(system, tools, 0), [query], 0) == upstream


def test_a_prompt_that_fits_keeps_all_its_context():
    model = ScriptedModel()
    ids = fit_prompt(model, PromptTemplate(context_turns=2), ["a", "b", "c", "d"], 100)
    assert ids[0] == BOS
    assert "<context>b\nc</context>\nd" in model.decode(ids)


def prompt_length(context: str) -> int:
    text = f"<|im_start|>user\n{context}d<|im_end|>\n<|im_start|>assistant\n"
    return 1 + len(ScriptedModel().encode(text))


@pytest.mark.parametrize(
    ("context", "spare"),
    [("<context>b\nc</context>\n", 0), ("<context>c</context>\n", 1), ("<context>c</context>\n", 0), ("", 1)],
)
def test_context_turns_are_dropped_oldest_first_until_the_answer_has_room(context, spare):
    room = 7
    model = ScriptedModel(max_seq_len=prompt_length(context) + spare + room)
    ids = fit_prompt(model, PromptTemplate(context_turns=2), ["a", "b", "c", "d"], room)
    assert len(ids) == prompt_length(context)


def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers():
    model = ScriptedModel(max_seq_len=prompt_length("") + 6)
    with pytest.raises(SessionError) as caught:
        fit_prompt(model, PromptTemplate(context_turns=2), ["a", "b", "c", "d"], 7)
    assert caught.value.code == "context_full"
    assert f"takes {prompt_length('')} tokens" in str(caught.value)
    assert f"can take {prompt_length('') - 1}" in str(caught.value)


@pytest.mark.parametrize("case", **named("prompts"))
def test_every_prompt_begins_with_its_fixed_part(case):
    template = PromptTemplate(**case["prompt"])
    assert fixed_part(template) == case["fixed"]
    model = ScriptedModel()
    for text in case["texts"]:
        prompt = [BOS, *model.encode(text)]
        assert count_fixed(model, template, prompt) == 1 + len(model.encode(case["fixed"]))
