"""Two programs, one grammar: the engine and the reference allow the same ids at every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.cact.reader import read_container
from builder.errors import GrammarError, SessionError
from builder.reference.generation import generate
from builder.reference.grammar import ReferenceGrammar
from builder.reference.sampling import draw
from builder.reference.session import ReferenceModel
from builder.runtime.interface import Sampling
from tests.grammar.samples import CATALOGUE, one_tool, refusal_of, schemas, tool_text


def compare(model, vocabulary, tools, rng, room):
    """Walk both at random, side by side."""
    if problem := refusal_of(model, tools):
        with pytest.raises(GrammarError) as caught:
            ReferenceGrammar(tools, vocabulary)
        assert caught.value.code == problem
        return
    engine = model.grammar(tools)
    reference = ReferenceGrammar(tools, vocabulary)
    token_id = model.info.tool_call_open_id
    while token_id != model.info.tool_call_close_id:
        engine.accept(token_id)
        reference.accept(token_id)
        room -= 1
        allowed = engine.allowed(room)
        assert np.array_equal(allowed, reference.allowed(room)), (tools, room)
        token_id = int(rng.choice(np.flatnonzero(allowed)))


@pytest.mark.slow
@settings(deadline=None, max_examples=15, derandomize=True)
@given(schema=schemas, seed=st.integers(0, 2**32 - 1), room=st.integers(20, 90))
def test_masks_of_random_schemas_are_equal(model, vocabulary, schema, seed, room):
    compare(model, vocabulary, one_tool(schema), np.random.default_rng(seed), room)


@pytest.mark.parametrize("start", range(6))
def test_masks_of_real_tools_are_equal(model, vocabulary, start):
    rng = np.random.default_rng(start)
    tools = [CATALOGUE[i] for i in rng.choice(len(CATALOGUE), 2, replace=False)]
    compare(model, vocabulary, tool_text(*tools), rng, int(rng.integers(10, 70)))


@pytest.mark.parametrize("room", [0, 1, 2, 3, 30])
def test_masks_of_free_text_are_equal(model, vocabulary, room):
    tools = tool_text(CATALOGUE[0])
    engine, reference = model.grammar(tools), ReferenceGrammar(tools, vocabulary)
    for text in ("hi <", "<tool", "_call", "<<tool_call", "</think>", "<think>", "é"):
        for token_id in model.encode(text):
            assert np.array_equal(engine.allowed(room), reference.allowed(room))
            engine.accept(token_id)
            reference.accept(token_id)
    assert np.array_equal(engine.allowed(room), reference.allowed(room))


def test_an_id_that_does_not_fit_moves_nothing(model, vocabulary):
    tools = tool_text(CATALOGUE[0])
    for grammar in (model.grammar(tools), ReferenceGrammar(tools, vocabulary)):
        grammar.accept(model.info.tool_call_open_id)
        before = grammar.allowed(50)
        for token_id in (
            model.info.im_end_id,
            model.info.eos_id,
            model.info.tool_call_close_id,
            model.encode("}")[0],
        ):
            with pytest.raises(SessionError) as caught:
                grammar.accept(token_id)
            assert caught.value.code == "bad_token"
            assert np.array_equal(grammar.allowed(50), before)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_both_programs_make_the_same_held_answer(model, container, temperature):
    reference = ReferenceModel(read_container(container))
    tools = tool_text(*CATALOGUE[10:13])
    prompt = [model.info.bos_id, *model.encode("set an alarm")]
    made = [
        generate(one, prompt, 40, Sampling(temperature, random_state=4), grammar=one.grammar(tools)).token_ids
        for one in (model, reference)
    ]
    assert made[0] == made[1]


OPEN_STRINGS = (
    {"type": "string"},
    {"type": "string", "minLength": 5, "maxLength": 7},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"enum": ["room", "roomthe", "日本"]}]},
    {"anyOf": [{"type": "string", "pattern": "^[a-o]+$"}, {"type": "string", "minLength": 4}]},
    {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "properties": {"room": {"const": 1}},
        "required": ["room"],
    },
)
"""Where pieces of plain characters need not be stepped through, and the borders of that."""


@pytest.mark.slow
@pytest.mark.parametrize("schema", OPEN_STRINGS)
def test_masks_within_open_strings_are_equal_in_every_room(model, vocabulary, schema):
    tools = one_tool(schema)
    engine, reference = model.grammar(tools), ReferenceGrammar(tools, vocabulary)
    opening = '[{"name":"t","arguments":{"v":' + ('{"' if "properties" in schema else '"')
    half_a_character = next(i for i, text in vocabulary.texts.items() if text == "日".encode()[:1])
    steps = (
        [model.info.tool_call_open_id, *model.encode(opening)],
        *map(model.encode, ("ro", "日", "om<", "é")),
    )
    for ids in (*steps, [half_a_character]):
        for token_id in ids:
            if engine.takes(token_id, 90):
                engine.accept(token_id)
                reference.accept(token_id)
        for room in (*range(16), 90):
            assert np.array_equal(engine.allowed(room), reference.allowed(room)), (ids, room)


@pytest.mark.parametrize("sampling", [(0.0,), (0.8,), (1.5, 0.7), (1.2, 1.0, 3)])
def test_a_held_draw_is_the_one_from_all_logits(model, sampling):
    """Only the rows that may be drawn are computed; what is drawn, and the logits afterwards, are as ever."""
    held, free = model.session(80), model.session(80)
    grammar = model.grammar(tool_text(*CATALOGUE[20:24]))
    ours, theirs = Sampling(*sampling, random_state=9), Sampling(*sampling, random_state=9)
    token_id, room = model.info.tool_call_open_id, 60
    while token_id != model.info.tool_call_close_id:
        grammar.accept(token_id)
        room -= 1
        for session in (held, free):
            session.append([token_id])
        token_id = held.sample(ours, grammar, room)
        assert token_id == draw(free.logits(), theirs, grammar.allowed(room))
        assert ours == theirs
        assert held.logits().tobytes() == free.logits().tobytes()
