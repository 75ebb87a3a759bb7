"""Whatever is drawn among the allowed ids is what the declared parameters ask for: jsonschema says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.reference.generation import generate
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.grammar.samples import CATALOGUE, check_calls, make_model, refusal_of, schemas, tool_text, walk


def test_the_catalogue_is_large_and_varied():
    text = tool_text(*CATALOGUE)
    assert len(CATALOGUE) >= 200
    assert all(
        f'"{keyword}"' in text for keyword in ("anyOf", "oneOf", "$ref", "pattern", "multipleOf", "nullable")
    )


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(CATALOGUE), 43))
def test_random_calls_of_real_tools_validate(model, start):
    rng = np.random.default_rng(start)
    for tool in CATALOGUE[start : start + 43]:
        grammar = model.grammar(tool_text(tool))
        marker, close = model.info.tool_call_open_id, model.info.tool_call_close_id
        ids = walk(grammar, rng, marker, close, int(rng.integers(20, 90)))
        check_calls(model.decode(ids), [tool])


@pytest.mark.slow
def test_many_tools_are_one_grammar(model):
    rng, tools = np.random.default_rng(5), CATALOGUE[:60]
    grammar = model.grammar(tool_text(*tools))
    info = model.info
    named = set()
    for _ in range(12):
        ids = walk(grammar, rng, info.tool_call_open_id, info.tool_call_close_id, 150)
        named |= {call["name"] for call in check_calls(model.decode(ids), tools)}
    assert len(named) > 3


@pytest.mark.slow
@settings(deadline=None, max_examples=30, derandomize=True)
@given(schema=schemas, seed=st.integers(0, 2**32 - 1))
def test_random_calls_of_random_schemas_validate(model, schema, seed):
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    tool = {"name": "t", "parameters": parameters}
    if problem := refusal_of(model, tool_text(tool)):
        assert problem in ("grammar_limit", "grammar_unsupported", "grammar_empty")
        return
    marker, close = model.info.tool_call_open_id, model.info.tool_call_close_id
    ids = walk(model.grammar(tool_text(tool)), np.random.default_rng(seed), marker, close, 120)
    check_calls(model.decode(ids), [tool])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_models_with_random_weights_never_break_a_call(seed, temperature):
    model = Engine().open(make_model(seed))
    tools = CATALOGUE[seed * 20 : seed * 20 + 20]
    grammar = model.grammar(tool_text(*tools))
    prompt = [model.info.bos_id, *model.encode("call<|im_end|><tool_call>")]
    for room in (1, 2, 3, 5, 8, 13, 40, 90, 200):
        made = generate(model, prompt[:-1], room, Sampling(temperature, random_state=seed), grammar=grammar)
        text = model.decode(made.token_ids)
        if "<tool_call>" in text:
            check_calls(text[text.index("<tool_call>") :], tools)
            assert made.stop_reason == "stop"
