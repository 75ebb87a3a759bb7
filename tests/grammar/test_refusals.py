"""What cannot be held to is refused, by keyword and path, by both programs alike; never ignored."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from builder.cact.tokenizer import Piece, PieceType, pack_tokenizer
from builder.errors import GrammarError, SessionError
from builder.reference.grammar import ReferenceGrammar, Vocabulary
from builder.reference.tokenizer import ReferenceTokenizer
from builder.runtime.engine import Engine
from tests.grammar.samples import make_model, make_tokenizer, nested_literals, one_tool, tool_text

UNSUPPORTED, LIMIT, BAD, EMPTY = "grammar_unsupported", "grammar_limit", "grammar_bad_schema", "grammar_empty"
V = "t/parameters/properties/v"
SIMPLE = {"type": "object", "properties": {"a": {"type": "integer"}}}

SCHEMAS = {
    "uniqueItems": ({"type": "array", "uniqueItems": True}, UNSUPPORTED, "uniqueItems"),
    "contains": ({"type": "array", "contains": {}}, UNSUPPORTED, "contains"),
    "prefixItems": ({"type": "array", "prefixItems": [{}]}, UNSUPPORTED, "prefixItems"),
    "a list of items": ({"type": "array", "items": [{}]}, UNSUPPORTED, "items"),
    "patternProperties": ({"type": "object", "patternProperties": {}}, UNSUPPORTED, "patternProperties"),
    "propertyNames": ({"type": "object", "propertyNames": {}}, UNSUPPORTED, "propertyNames"),
    "minProperties": ({"type": "object", "minProperties": 1}, UNSUPPORTED, "minProperties"),
    "maxProperties": ({"type": "object", "maxProperties": 1}, UNSUPPORTED, "maxProperties"),
    "dependentRequired": ({"type": "object", "dependentRequired": {}}, UNSUPPORTED, "dependentRequired"),
    "not": ({"not": {}}, UNSUPPORTED, "not"),
    "if": ({"if": {}, "then": {}}, UNSUPPORTED, "if"),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, UNSUPPORTED, "unevaluatedProperties"),
    "$dynamicRef": ({"$dynamicRef": "#a"}, UNSUPPORTED, "$dynamicRef"),
    "an unknown word": ({"type": "string", "maxlength": 3}, UNSUPPORTED, "maxlength"),
    "two schemas in allOf": ({"allOf": [{}, {}]}, UNSUPPORTED, "allOf"),
    "anyOf beside type": ({"type": "object", "anyOf": [{}]}, UNSUPPORTED, "anyOf"),
    "$ref beside maxLength": ({"$ref": "#", "maxLength": 3}, UNSUPPORTED, "$ref"),
    "enum beside a bound": ({"enum": [1, 2], "minimum": 2}, UNSUPPORTED, "enum"),
    "oneOf that may overlap": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, UNSUPPORTED, "oneOf"),
    "objects that may overlap": ({"oneOf": [SIMPLE, SIMPLE]}, UNSUPPORTED, "oneOf"),
    "a step that binary64 lacks": ({"type": "number", "multipleOf": 0.01}, UNSUPPORTED, "multipleOf"),
    "an old draft's bound": ({"type": "integer", "exclusiveMinimum": True}, UNSUPPORTED, "exclusiveMinimum"),
    "look-ahead": ({"type": "string", "pattern": "^(?=a)"}, UNSUPPORTED, "pattern"),
    "a back reference": ({"type": "string", "pattern": "(a)\\1"}, UNSUPPORTED, "pattern"),
    "a word border": ({"type": "string", "pattern": "\\bx"}, UNSUPPORTED, "pattern"),
    "a Unicode class": ({"type": "string", "pattern": "\\p{L}"}, UNSUPPORTED, "pattern"),
    "an anchor in the middle": ({"type": "string", "pattern": "(^a|b)"}, UNSUPPORTED, "pattern"),
    "an open bracket": ({"type": "string", "pattern": "[a"}, UNSUPPORTED, "pattern"),
    "an open group": ({"type": "string", "pattern": "(a"}, UNSUPPORTED, "pattern"),
    "a bracket too many": ({"type": "string", "pattern": "a)"}, UNSUPPORTED, "pattern"),
    "a quantifier twice": ({"type": "string", "pattern": "a{2}{3}"}, UNSUPPORTED, "pattern"),
    "a character no tokenizer gives back": ({"const": "a\u2581"}, UNSUPPORTED, "const"),
    "a pattern that is too large": ({"type": "string", "pattern": "^[a-z]{129}$"}, LIMIT, "pattern"),
    "repetitions within repetitions": ({"pattern": "((((a{9}){9}){9}){9})"}, LIMIT, "pattern"),
    "nested groups": ({"pattern": "(" * 40 + "a" + ")" * 40}, LIMIT, "pattern"),
    "a number beyond every number": ({"type": "number", "minimum": 0, "maximum": "1e999"}, LIMIT, "maximum"),
    "too many digits": ({"type": "integer", "minimum": 10**19}, LIMIT, "minimum"),
    "a bound with too many decimals": ({"type": "number", "minimum": 1e-12, "maximum": 1}, LIMIT, "minimum"),
    "a long shortest string": ({"type": "string", "minLength": 70000}, LIMIT, "minLength"),
    "a long shortest match": ({"type": "string", "pattern": "^a*$", "minLength": 64}, LIMIT, "minLength"),
    "a literal beyond every number": ({"enum": ["1e999"]}, LIMIT, "enum"),
    "no type": ({"type": "text"}, BAD, "type"),
    "an empty list of types": ({"type": []}, BAD, "type"),
    "a length that is no count": ({"type": "string", "maxLength": 1.5}, BAD, "maxLength"),
    "a negative count": ({"type": "array", "minItems": -1}, BAD, "minItems"),
    "a step of zero": ({"type": "integer", "multipleOf": 0}, BAD, "multipleOf"),
    "a reference to nowhere": ({"$ref": "#/$defs/x"}, BAD, "$ref"),
    "a reference elsewhere": ({"$ref": "https://example.org/a.json"}, BAD, "$ref"),
    "no alternatives": ({"anyOf": []}, BAD, "anyOf"),
    "a schema that is none": ({"type": "array", "items": 3}, BAD, "items"),
    "required that is no list": ({"type": "object", "required": "a"}, BAD, "required"),
    "a name that is not declared": ({"type": "object", "required": ["a"]}, EMPTY, "required/a"),
    "an enum of other types": ({"type": "integer", "enum": ["a"]}, EMPTY, "enum"),
}
TOOLS = {
    "bounds that cross": (one_tool({"type": "integer", "minimum": 3, "maximum": 2}), EMPTY, "t:"),
    "a cycle without an end": (
        tool_text({"name": "t", "parameters": {"$ref": "#"}}),
        EMPTY,
        "t:",
    ),
    "an object that needs itself": (
        one_tool({"type": "object", "properties": {"n": {"$ref": "#/properties/v"}}, "required": ["n"]}),
        EMPTY,
        "t:",
    ),
    "parameters that are no object": (
        tool_text({"name": "t", "parameters": {"type": "string"}}),
        EMPTY,
        "t:",
    ),
    "too many readings at once": (
        one_tool({"anyOf": [{"type": "string", "maxLength": i} for i in range(1, 10)]}),
        LIMIT,
        "t:",
    ),
    "too deep": (
        one_tool(
            json.loads('{"type":"array","minItems":1,"items":' * 31 + "{}" + "}" * 31),
        ),
        LIMIT,
        "t:",
    ),
    "too many properties": (
        one_tool({"type": "object", "properties": {f"p{i}": {} for i in range(65)}}),
        LIMIT,
        "p64",
    ),
    "a member of a tool": (tool_text({"name": "t", "triggers": ["x"]}), UNSUPPORTED, "t/triggers"),
    "a tool without a name": ('[{"description":"x"}]', BAD, "0:"),
    "two tools of one name": ('[{"name":"t"},{"name":"t"}]', BAD, "t/name"),
    "no list": ("{}", BAD, "tools"),
    "no JSON": ("[", "grammar_bad_json", "tools"),
    "a key twice": ('[{"name":"a","name":"b"}]', "grammar_bad_json", "tools"),
    "half a pair of surrogates": ('[{"name":"\\ud800"}]', "grammar_bad_json", "tools"),
    "JSON that is too deep": ("[" * 100 + "]" * 100, "grammar_bad_json", "tools"),
    "a number that is none": ('[{"name":"t","x-a":01}]', "grammar_bad_json", "tools"),
}


TOOLS["literals within literals"] = (nested_literals(50, 50, 20000), LIMIT, "tools")


def refused_by_both(model, vocabulary, tools: str, code: str, path: str) -> None:
    for refuse in (model.grammar, lambda text: ReferenceGrammar(text, vocabulary)):
        with pytest.raises(GrammarError) as caught:
            refuse(tools)
        assert caught.value.code == code, caught.value
        assert path in str(caught.value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_refused_with_its_path(model, vocabulary, name):
    schema, code, keyword = SCHEMAS[name]
    tools = one_tool(schema).replace('"1e999"', "1e999")
    refused_by_both(model, vocabulary, tools, code, f"{V}/{keyword}")


@pytest.mark.parametrize("name", TOOLS)
def test_tools_are_refused(model, vocabulary, name):
    refused_by_both(model, vocabulary, *TOOLS[name])


@pytest.mark.parametrize("letters", range(50, 90))
def test_both_count_the_bytes_of_literals(model, vocabulary, letters):
    tools = nested_literals(4, 3, letters)
    verdicts = []
    for compile_it in (model.grammar, lambda text: ReferenceGrammar(text, vocabulary)):
        try:
            compile_it(tools)
            verdicts.append(None)
        except GrammarError as error:
            verdicts.append(error.code)
    assert verdicts[0] == verdicts[1]
    assert verdicts[0] in (None, LIMIT)


A = make_tokenizer().pieces.index(Piece("<0x41>", 0.0, PieceType.BYTE))
SPELT = tuple(piece for piece in make_tokenizer().pieces if piece.text != "A")
VOCABULARIES = {
    "a byte that ends the answer": (replace(make_tokenizer(), pieces=SPELT, eos_id=A), UNSUPPORTED),
    "a byte that ends the answer and a letter": (replace(make_tokenizer(), eos_id=A), None),
    "no bytes": (
        replace(
            make_tokenizer(),
            pieces=tuple(piece for piece in make_tokenizer().pieces if piece.type is not PieceType.BYTE),
            byte_fallback=False,
        ),
        UNSUPPORTED,
    ),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_both_need_a_piece_for_each_byte(name):
    tokenizer, code = VOCABULARIES[name]
    model = Engine().open(make_model(0, tokenizer))
    reference = ReferenceTokenizer(pack_tokenizer(tokenizer))
    for compile_it in (
        lambda: model.grammar("[]"),
        lambda: ReferenceGrammar("[]", Vocabulary(reference.piece_bytes, model.info)),
    ):
        with pytest.raises(GrammarError) if code else nullcontext() as caught:
            compile_it()
        assert code is None or caught.value.code == code


def test_a_lone_surrogate_is_no_text(model, vocabulary):
    tools = tool_text({"name": "t", "description": "\ud800"})
    for compile_it in (model.grammar, lambda text: ReferenceGrammar(text, vocabulary)):
        with pytest.raises(SessionError, match="tools: character: is a lone surrogate at ") as caught:
            compile_it(tools)
        assert caught.value.code == "bad_utf8"


def test_a_required_name_is_declared_once(model, vocabulary):
    names = {f"p{i}": {} for i in range(64)}
    schema = {"type": "object", "properties": names, "additionalProperties": True, "required": ["p0"]}
    model.grammar(one_tool(schema))
    ReferenceGrammar(one_tool(schema), vocabulary)


HUGE = {
    "an enum of thousands": one_tool({"enum": [f"value {i}" for i in range(4000)]}),
    "a long enum member": one_tool({"enum": ["x" * 5000, "y"]}),
    "hundreds of tools": tool_text(*({"name": f"tool_{i}"} for i in range(400))),
    "many patterns": one_tool({"anyOf": [{"type": "string", "pattern": "^a{128}$"} for _ in range(40)]}),
    "many definitions": tool_text(
        {
            "name": "t",
            "parameters": {
                "type": "object",
                "properties": {"v": {"$ref": "#/$defs/d0"}},
                "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(200)} | {"d200": {}},
            },
        }
    ),
    "nested choices": one_tool(json.loads('{"anyOf":[{"type":"null"},' * 50 + "{}" + "]}" * 50)),
    "text beyond the limit": '["' + "x" * (1 << 20) + '"]',
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_tools_are_compiled_or_refused(model, name):
    """Never a trap, never a wait: each ends with a grammar that allows something, or with its code."""
    try:
        grammar = model.grammar(HUGE[name])
    except GrammarError as error:
        assert error.code.startswith("grammar_")  # noqa: PT017
        return
    grammar.accept(model.info.tool_call_open_id)
    assert grammar.allowed(200).any()


def test_annotations_change_nothing(model):
    plain = {"type": "string", "maxLength": 3}
    notes = {
        "title": "A",
        "description": "b",
        "default": "c",
        "examples": ["d"],
        "format": "email",
        "x-order": 1,
    }
    notes |= {"deprecated": True, "readOnly": False, "$comment": "e"}
    grammars = [model.grammar(one_tool(schema)) for schema in (plain, plain | notes)]
    for grammar in grammars:
        grammar.accept(model.info.tool_call_open_id)
    assert (grammars[0].allowed(60) == grammars[1].allowed(60)).all()
