"""Byte by byte against llguidance: what may come next is the same set of 256, known differences aside."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from llguidance import JsonCompiler, LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from builder.reference import grammar_automaton as automaton
from builder.reference.grammar_prepare import prepare
from builder.reference.grammar_schema import compile_tools
from tests.grammar.samples import one_tool, strict

BYTES = LLTokenizer("byte")
HEAD = b'[{"name":"t","arguments":{"v":'
NUMBER_LIMITS = re.compile(rb"[eE][+-]?[0-9]|\.[0-9]{6}")
"""Behind these only we have a limit of digits."""
DELETE, SLASH, LETTER_U = 0x7F, 0x2F, 0x75

SCHEMAS = {
    "string": {"type": "string"},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 3},
    "integer": {"type": "integer"},
    "range": {"type": "integer", "minimum": 5, "maximum": 1234},
    "negative range": {"type": "integer", "minimum": -305, "maximum": -17},
    "range across zero": {"type": "integer", "minimum": -12, "maximum": 104},
    "multiples": {"type": "integer", "multipleOf": 5, "minimum": 1},
    "exclusive range": {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 100},
    "number": {"type": "number"},
    "number range": {"type": "number", "minimum": 1.25, "maximum": 30.5},
    "enum": {"enum": ["a", "ab", 'q"', 1, 12, None, True, [1, {"k": 2}]]},
    "const": {"const": {"a": ["é", False]}},
    "types": {"type": ["string", "null", "boolean"]},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    "nested": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 1}},
    "object": {"type": "object", "properties": {"key": {"type": "integer"}}},
    "required": {"type": "object", "properties": {"key": {"type": "null"}}, "required": ["key"]},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,3}-[0-9]+$"},
    "alternation": {"type": "string", "pattern": "^(a|bc)*d?$"},
    "search": {"type": "string", "pattern": "b[0-9]"},
    "unicode pattern": {"type": "string", "pattern": "^[à-ý]日?$"},
    "negated class": {"type": "string", "pattern": "^[^x-z]{1,2}!$"},
    "pattern and length": {"type": "string", "pattern": "^[ab]*$", "minLength": 2, "maxLength": 4},
    "choice of objects": {
        "anyOf": [
            {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]},
        ]
    },
    "choice of strings": {
        "anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^abc$"}]
    },
    "recursive": {"type": "object", "properties": {"next": {"$ref": "#/properties/v"}}},
}


def theirs(matcher: LLMatcher) -> set[int]:
    words = allocate_token_bitmask(1, BYTES.vocab_size)
    fill_next_token_bitmask(matcher, words, 0)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:256]).tolist())


def beyond(text: bytes) -> set[int]:
    """Bytes on which the two are known to differ here: docs/grammar.md, "Differences"."""
    within_escape = text.endswith(b"\\") and not text.endswith(b"\\\\")
    return {SLASH, LETTER_U} if within_escape else {DELETE}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_next_byte_is_the_same_set(name):
    tools = one_tool(SCHEMAS[name])
    parameters = strict(json.loads(tools)[0]["parameters"])
    grammar = JsonCompiler(whitespace_flexible=False, separators=(",", ":")).compile(json.dumps(parameters))
    root = compile_tools(tools)
    prepare(root)
    rng = np.random.default_rng(len(name))
    for _ in range(6):
        matcher = LLMatcher(BYTES, grammar)
        assert not matcher.is_error(), matcher.get_error()
        place = automaton.start(root)
        for byte in HEAD:
            place = automaton.step(place, byte)
        assert matcher.try_consume_tokens(list(b'{"v":')) == 5
        text = b""
        while len(text) < 12 and not NUMBER_LIMITS.search(text):
            ours = {byte for byte in range(256) if automaton.step(place, byte)}
            ignored = beyond(text)
            assert ours - ignored == theirs(matcher) - ignored, text
            byte = int(rng.choice(sorted(ours - ignored)))
            text, place = text + bytes([byte]), automaton.step(place, byte)
            if len(place[0]) == 2:
                break  # the arguments are closed, and what follows only we know
            assert matcher.try_consume_tokens([byte]) == 1
