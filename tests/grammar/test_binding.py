"""Where the grammar binds, and that whatever is begun ends within its room."""

from __future__ import annotations

import numpy as np
import pytest

from builder.reference.generation import generate
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.engine.tokenizers import tokenizer_of
from tests.grammar.samples import CATALOGUE, check_calls, make_model, make_tokenizer, tool_text, walk

LIGHT = {
    "name": "light",
    "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]},
}


def test_free_text_may_be_anything_but_a_marker_that_is_spelt(model):
    grammar, info = model.grammar(tool_text(LIGHT)), model.info
    assert grammar.allowed(100).all()
    for token_id in model.encode("say <") + model.encode("tool_call"):
        grammar.accept(token_id)
    refused = np.flatnonzero(~grammar.allowed(100))
    assert {model.decode([int(i)]) for i in refused} == {">"}
    grammar.accept(model.encode("x")[0])
    assert grammar.allowed(100)[info.tool_call_open_id]


def test_no_call_begins_in_a_thought(model):
    grammar, info = model.grammar(tool_text(LIGHT)), model.info
    grammar.accept(info.think_open_id)
    assert not grammar.allowed(100)[info.tool_call_open_id]
    grammar.accept(info.think_close_id)
    assert grammar.allowed(100)[info.tool_call_open_id]


def test_no_call_begins_without_room_for_the_shortest_list(model):
    grammar, info = model.grammar(tool_text(LIGHT)), model.info
    begins = [bool(grammar.allowed(room)[info.tool_call_open_id]) for room in range(5)]
    assert begins == [
        False,
        False,
        False,
        True,
        True,
    ]  # the marker, `[]` in one piece, and the marker that closes


@pytest.mark.parametrize("room", range(3, 60, 4))
def test_an_answer_ends_within_any_room(model, room):
    rng, info = np.random.default_rng(room), model.info
    for tool in CATALOGUE[room::60]:
        ids = walk(model.grammar(tool_text(tool)), rng, info.tool_call_open_id, info.tool_call_close_id, room)
        check_calls(model.decode(ids), [tool])


def test_a_dummy_prefix_and_pieces_of_bytes_alone_work():
    bare = tokenizer_of({"a": -1.0}, make_tokenizer_markers(), dummy=True)
    model = Engine().open(make_model(1, bare))
    rng, info = np.random.default_rng(1), model.info
    tool = {"name": "t", "parameters": {"type": "object", "properties": {"v": {"enum": ["é 日", "😀"]}}}}
    grammar = model.grammar(tool_text(tool))
    seen = set()
    for _ in range(12):
        ids = walk(grammar, rng, info.tool_call_open_id, info.tool_call_close_id, 160)
        seen |= {call["arguments"].get("v") for call in check_calls(model.decode(ids), [tool])}
    assert {"é 日", "😀"} <= seen


def make_tokenizer_markers() -> tuple[str, ...]:
    return tuple(piece.text for piece in make_tokenizer().pieces if piece.type.name == "USER_DEFINED")


def test_many_empty_schemas_take_little_memory(container):
    model = Engine().open(container)
    before = model.memory_bytes
    parameters = {"type": "object", "properties": {"v": {"const": [{}] * 20000}}}
    model.grammar(tool_text({"name": "t", "parameters": parameters}))
    assert model.memory_bytes - before < 8 << 20


def test_a_grammar_starts_afresh_with_each_answer(model):
    grammar = model.grammar(tool_text(LIGHT))
    prompt = [model.info.bos_id, *model.encode("hi")]
    answers = [
        generate(model, prompt, 30, Sampling(0.8, random_state=3), grammar=grammar).token_ids
        for _ in range(2)
    ]
    assert answers[0] == answers[1]


def test_grammars_of_one_model_do_not_disturb_each_other(model):
    first, second = (model.grammar(tool_text(tool)) for tool in (LIGHT, CATALOGUE[3]))
    first.accept(model.info.tool_call_open_id)
    before = first.allowed(60)
    second.accept(model.info.tool_call_open_id)
    second.accept(model.encode("[")[0])
    assert (first.allowed(60) == before).all()
