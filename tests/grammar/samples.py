"""A small model whose vocabulary can spell JSON in many ways, schemas to draw, a validator's view of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from hypothesis import strategies as st

from builder.cact.reader import read_container
from builder.cact.tokenizer import Tokenizer, pack_tokenizer
from builder.cact.writer import blobs_of, cq_blob, raw_blob, write_container
from builder.errors import GrammarError
from builder.runtime.engine import EngineModel
from builder.runtime.interface import Grammar
from tests.engine.tokenizers import tokenizer_of

ROOT = Path(__file__).parents[1]
CATALOGUE: list[dict[str, Any]] = json.loads((ROOT / "grammar" / "catalogue.json").read_text("utf-8"))
MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
)
JOINTS = (
    *('[{"', '{"', '":"', '","', '":', '"}', '"}]', "}]", "}},{", '":{"', '"],"', '":[', "[]", "{}", "[{"),
    *(
        '"',
        'name":"',
        "arguments",
        '","arguments":{"',
        "true",
        "false",
        "null",
        "rue",
        "a",
        "ab",
        "on",
        "off",
    ),
    *(
        "room",
        "the",
        "▁the",
        "▁",
        "▁a",
        "12",
        "0",
        "00",
        "-",
        "-1",
        ".5",
        "e",
        "E+",
        "20",
        "\\",
        '\\"',
        "\\u",
    ),
    *(
        "\\n",
        "u00",
        "é",
        "日",
        "日本",
        "😀",
        "ß",
        "-01-",
        ":0",
        "@",
        ".com",
        "https://",
        "<",
        "<tool",
        "_call>",
    ),
    *("tool_call", ">", "type", "id", "x" * 40, "}" * 3, '"' * 2, "]" * 2),
)
MODEL_TOKENS = 400


def make_tokenizer() -> Tokenizer:
    """All bytes, the markers, and pieces that cross the borders of JSON's own tokens."""
    characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789{}[]:,-_./"
    texts = dict.fromkeys((*JOINTS, *characters))
    return tokenizer_of({text: -float(i) for i, text in enumerate(texts)}, MARKERS)


def make_model(seed: int = 0, tokenizer: Tokenizer | None = None) -> bytes:
    """The golden generation-3 file with another vocabulary, random rows for it, and a longer context."""
    tokenizer = tokenizer or make_tokenizer()
    container = read_container(ROOT / "golden" / "tiny84.cact")
    rng = np.random.default_rng(seed)
    count = len(tokenizer.pieces)
    header = replace(container.header, vocab_count=count, out_vocab_count=0, max_seq_len=MODEL_TOKENS)
    blobs = blobs_of(container)
    codes = rng.integers(0, 16, (count, 128)).astype(np.uint8)
    norms = rng.uniform(0.5, 2, (count, 1)).astype(np.float16)
    blobs[0] = cq_blob(codes, norms, 4, container.header.d_model)
    blobs[-1] = raw_blob(pack_tokenizer(tokenizer))
    return write_container(header, blobs)


def nested_literals(depth: int, references: int, letters: int) -> str:
    """A tool whose references lead into literals within literals: each writes what is left of them again."""
    literal: Any = "a" * letters
    for _ in range(depth):
        literal = {"const": literal}
    names = {f"p{i}": {"$ref": "#/$defs/a" + "/const" * i} for i in range(references)}
    parameters = {"type": "object", "properties": names, "$defs": {"a": literal}}
    return tool_text({"name": "t", "parameters": parameters})


def tool_text(*tools: dict[str, Any]) -> str:
    """Tools as they stand in a prompt."""
    return json.dumps(list(tools), separators=(",", ":"), ensure_ascii=False)


def one_tool(schema: Any) -> str:
    """A tool whose only argument has this schema."""
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    return tool_text({"name": "t", "parameters": parameters})


def refusal_of(model: EngineModel, tools: str) -> str | None:
    """The code that the tools are refused with, if they are."""
    try:
        model.grammar(tools)
    except GrammarError as error:
        return error.code
    return None


def walk(grammar: Grammar, rng: np.random.Generator, marker: int, close: int, room: int) -> list[int]:
    """An answer of one call list, each id drawn at random among those that are allowed."""
    grammar.reset()
    ids = [marker]
    grammar.accept(marker)
    while ids[-1] != close:
        allowed = np.flatnonzero(grammar.allowed(room - len(ids)))
        assert len(allowed), (ids, room)
        ids.append(int(rng.choice(allowed)))
        grammar.accept(ids[-1])
    assert len(ids) <= room
    return ids


def check_calls(text: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls in a whole answer: JSON, and valid under the declared parameters, read strictly."""
    assert text.startswith("<tool_call>")
    assert text.endswith("</tool_call>")
    payload = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    calls: list[dict[str, Any]] = json.loads(payload)
    parameters = {tool["name"]: tool.get("parameters", {"type": "object"}) for tool in tools}
    for call in calls:
        assert list(call) == ["name", "arguments"]
        jsonschema.Draft202012Validator(strict(parameters[call["name"]])).validate(call["arguments"])
    return calls


def strict(schema: Any) -> Any:
    """The strict reading as plain JSON Schema: what is not declared is not there; `nullable` as a choice."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: {name: strict(value) for name, value in inner.items()}
        if key in ("properties", "$defs")
        else strict(inner)
        for key, inner in schema.items()
        if key not in ("enum", "const")
    }
    result |= {key: schema[key] for key in ("enum", "const") if key in schema}
    constraints = set(schema) - {"title", "description", "default", "$defs", "definitions"}
    if constraints & {"type", "properties"} and not constraints & {"additionalProperties", "anyOf", "$ref"}:
        result["additionalProperties"] = False
    if result.pop("nullable", False) is True:
        return {"anyOf": [result, {"type": "null"}]}
    return result


names = st.sampled_from(["a", "ab", "b", "name", "é", 'q"', "room", "x y"])
texts = st.text('ab"\\é日 1\n/', max_size=4)
whole = st.integers(-2000, 2000)
patterns = st.sampled_from(
    [
        *("^[a-c]{2,3}-[0-9]+$", "^(a|bc)*d?$", "b", "^é?[^\\s@]+$", "^\\d{2}:\\d{2}$", "a.c", "^$|^x+$"),
        *("^\\S+ \\S+$", '^[\\n"a]{2}$', "^(\\\\|日)+$"),
    ]
)


@st.composite
def bounded(draw: st.DrawFn, lower: str, upper: str, values: st.SearchStrategy[int]) -> dict[str, Any]:
    """None, one or both of two bounds that leave something between them."""
    low = draw(values)
    found = {lower: low, upper: low + draw(st.integers(0, 30))}
    return {key: found[key] for key in draw(st.sets(st.sampled_from([lower, upper])))}


@st.composite
def strings(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(bounded("minLength", "maxLength", st.integers(0, 5)))
    if draw(st.booleans()):
        return {"type": "string"} | lengths
    most = {"maxLength": 12} if draw(st.booleans()) else {}
    return {"type": "string", "pattern": draw(patterns)} | most


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["integer", "number"]))
    schema = {"type": kind} | draw(bounded("minimum", "maximum", whole))
    if draw(st.booleans()):
        low = draw(st.integers(-50, 50)) / draw(st.sampled_from([1, 2, 8, 10]))
        schema = {"type": kind, "exclusiveMinimum": low, "maximum": low + draw(st.integers(2, 100))}
    if draw(st.booleans()):
        steps = [1, 5, 7] if kind == "integer" else [1, 5, 0.5, 0.25]
        schema |= {"multipleOf": draw(st.sampled_from(steps))}
        schema.pop("maximum", None)
    return schema


literals = st.none() | st.booleans() | whole | texts | st.lists(whole, max_size=2)
leaves = (
    strings()
    | numbers()
    | st.just({"type": "boolean"})
    | st.just({"type": ["string", "null"]})
    | st.lists(literals, min_size=1, max_size=5).map(lambda values: {"enum": values})
    | literals.map(lambda value: {"const": value})
    | st.just({})
)


def _inner(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.tuples(children, bounded("minItems", "maxItems", st.integers(0, 2))).map(
        lambda pair: {"type": "array", "items": pair[0], **pair[1]}
    )
    objects = st.tuples(st.dictionaries(names, children, max_size=3), st.sets(names)).map(
        lambda pair: {
            "type": "object",
            "properties": pair[0],
            "required": sorted(set(pair[0]) & pair[1]),
            "additionalProperties": False,
        }
    )
    maps = children.map(lambda child: {"type": "object", "additionalProperties": child})
    choices = st.lists(children, min_size=1, max_size=2).map(lambda items: {"anyOf": items})
    return arrays | objects | maps | choices


schemas = st.recursive(leaves, _inner, max_leaves=6)
"""Of the supported subset, each with a value."""
