"""The demo's specialists say what they said without a grammar, wherever that was valid."""

from __future__ import annotations

import json

import jsonschema
import pytest

from builder.reference.generation import generate
from builder.reference.prompts import PromptTemplate, fit_prompt
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.conftest import DEMO
from tests.grammar.samples import check_calls

TURNS = [
    turn for talk in json.loads((DEMO / "conversations.json").read_text("utf-8")) for turn in talk["turns"]
]
SPECIALISTS = ("home", "kitchen", "media", "calendar")


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIALISTS)
def test_an_answer_that_was_valid_stays(demo_family, name):
    member = demo_family.family.member(name)
    model = Engine().open((demo_family.folder / f"{name}.cact").read_bytes())
    grammar, tools = model.grammar(member.tools), json.loads(member.tools)
    template = PromptTemplate(member.system, member.tools)
    kept = 0
    for turn in TURNS:
        if turn["route"] != name:
            continue
        prompt = fit_prompt(model, template, [turn["user"]], member.max_new_tokens)
        free = generate(model, prompt, member.max_new_tokens, Sampling())
        held = generate(model, prompt, member.max_new_tokens, Sampling(), grammar=grammar)
        check_calls(model.decode(held.token_ids), tools)
        if is_valid(model.decode(free.token_ids), tools):
            assert held.token_ids == free.token_ids
            kept += 1
    assert kept >= 5


def is_valid(text: str, tools: list[dict[str, object]]) -> bool:
    try:
        check_calls(text, tools)
    except (AssertionError, ValueError, KeyError, TypeError, jsonschema.ValidationError):
        return False
    return True
