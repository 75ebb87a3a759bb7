"""From declared tools to the shapes of their calls.

Owns: which JSON Schema keywords are enforced, what each means, and the refusals with the keyword's path.
Source: docs/grammar.md; the engine does the same, and both are held to JSON Schema validators.
Does not know: bytes of an answer, tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from builder.errors import GrammarError, utf8_of
from builder.reference.grammar_number import DIGITS_MAX, NumberRule
from builder.reference.grammar_pattern import (
    LENGTHS_MAX,
    UnsupportedPatternError,
    compile_pattern,
)
from builder.reference.grammar_shapes import (
    NO_LIMIT,
    Array,
    Call,
    Choice,
    Literals,
    Node,
    Number,
    Object,
    String,
    are_disjoint,
    flat,
)

TEXT_BYTES_MAX = 1 << 20
JSON_DEPTH_MAX, JSON_MEMBERS_MAX = 64, 256
SCHEMA_DEPTH_MAX = 96
PROPERTIES_MAX = 64
COUNT_MAX = 65536
POSITIONS_ALL_MAX = 4096
BOUNDED_DIGITS_MAX, DECIMALS_MAX = 15, 9
SPACE_MARK = "\u2581"

CONSTRAINTS = (
    *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "properties", "required", "additionalProperties", "items"),
    *("minItems", "maxItems", "anyOf", "oneOf", "allOf", "$ref"),
)
ANNOTATIONS = (
    *("title", "description", "default", "examples", "example", "format", "deprecated", "readOnly"),
    *("writeOnly", "$comment", "$schema", "$id", "$defs", "definitions", "contentMediaType"),
    "contentEncoding",
)
TOOL_MEMBERS = ("name", "description", "parameters", "title", "annotations", "examples", "strict")
LONE = ("$ref", "allOf", "anyOf", "oneOf")
TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")

Path = tuple[str, ...]


class JsonNumber(str):
    """A number as it is written."""

    __slots__ = ()


def read_tools(text: str) -> Any:
    """The tools' JSON, numbers as they are written. Raises `GrammarError` (bad_json, limit), and
    `SessionError` (bad_utf8) for lone surrogates.
    """
    if len(utf8_of("tools", text)) > TEXT_BYTES_MAX:
        raise GrammarError(f"tools: are longer than {TEXT_BYTES_MAX} bytes", code="grammar_limit")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=JsonNumber,
            parse_float=JsonNumber,
            parse_constant=_refuse_constant,
        )
        _check_json(value, 0)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"tools: are not JSON: {error}", code="grammar_bad_json") from None
    return value


def compile_tools(text: str) -> Array:
    """The shape of a list of calls of the declared tools. Raises `GrammarError` (grammar_*)."""
    tools = read_tools(text)
    if not isinstance(tools, list):
        raise GrammarError("tools: must be a list", code="grammar_bad_schema")
    heads: dict[bytes, Node] = {}
    compilers = [_Compiler() for _ in tools]
    shapes = [compiler.tool(tool, i) for i, (compiler, tool) in enumerate(zip(compilers, tools, strict=True))]
    if sum(compiler.positions for compiler in compilers) > POSITIONS_ALL_MAX:
        raise GrammarError("tools: their patterns are too long together", code="grammar_limit")
    if sum(compiler.literal_bytes for compiler in compilers) > len(text.encode()):
        raise GrammarError("tools: their literals are longer than the text", code="grammar_limit")
    for tool, shape in zip(tools, shapes, strict=True):
        path = (tool["name"],)
        head = b'{"name":' + _text_of(tool["name"], path) + b',"arguments":'
        if head in heads:
            _refuse("grammar_bad_schema", (*path, "name"))
        heads[head] = shape
    return Array(Call(dict(sorted(heads.items()))))


class _Compiler:
    """One tool's parameters."""

    def __init__(self) -> None:
        self.root: Any = None
        self.positions = 0
        self.literal_bytes = 0
        self._known: dict[int, Node] = {}
        self._boolean, self._null = Literals([b"false", b"true"]), Literals([b"null"])
        self._nothing, self._any = Choice(), Choice()
        self._any.alternatives = [
            *(String(), Number(NumberRule()), self._boolean, self._null),
            *(Array(self._any), Object(extra=self._any)),
        ]

    def tool(self, tool: Any, place: int) -> Node:
        """The shape of the tool's arguments."""
        name = tool.get("name") if isinstance(tool, dict) else None
        if not _is_text(name) or not name:
            _refuse("grammar_bad_schema", (str(place),))
        for key in tool:
            if key not in TOOL_MEMBERS and not _is_extension(key):
                _refuse("grammar_unsupported", (name, key))
        if "parameters" not in tool:
            return Object()
        self.root = tool["parameters"]
        shape = self.compile(self.root, (name, "parameters"), 1)
        if isinstance(shape, Choice):
            return Choice([node for node in flat(shape) if isinstance(node, Object)])
        return shape

    def compile(self, schema: Any, path: Path, depth: int) -> Node:
        if schema is True:
            return self._any
        if schema is False:
            return self._nothing
        if not isinstance(schema, dict):
            _refuse("grammar_bad_schema", path)
        if depth > SCHEMA_DEPTH_MAX:
            _refuse("grammar_limit", path)
        if id(schema) in self._known:
            return self._known[id(schema)]
        for key in schema:
            if key not in (*CONSTRAINTS, *ANNOTATIONS, "nullable") and not _is_extension(key):
                _refuse("grammar_unsupported", (*path, key))
        present = {key for key in schema if key in CONSTRAINTS}
        if not present:
            self._known[id(schema)] = self._any
            return self._any
        choice = self._known[id(schema)] = Choice(is_open=True)
        choice.alternatives = self._alternatives(schema, present, path, depth)
        if schema.get("nullable") is True:
            choice.alternatives.append(self._null)
        choice.is_open = False
        return choice

    def _alternatives(self, schema: dict[str, Any], present: set[str], path: Path, depth: int) -> list[Node]:
        lone = next((key for key in LONE if key in present), None)
        if lone:
            if present != {lone}:
                _refuse("grammar_unsupported", (*path, lone))
            return self._lone(lone, schema[lone], (*path, lone), depth + 1)
        if "enum" in present or "const" in present:
            return [self._literals(schema, present, path)]
        types = _types(schema, path)
        makers: dict[str, Callable[[], Node]] = {
            "string": lambda: self._string(schema, path),
            "number": lambda: Number(_number_rule(schema, path, is_integer=False)),
            "integer": lambda: Number(_number_rule(schema, path, is_integer=True)),
            "boolean": lambda: self._boolean,
            "null": lambda: self._null,
            "object": lambda: self._object(schema, path, depth),
            "array": lambda: self._array(schema, path, depth),
        }
        if "number" in types:
            types -= {"integer"}
        return [makers[name]() for name in TYPES if name in types]

    def _lone(self, keyword: str, value: Any, path: Path, depth: int) -> list[Node]:
        if keyword == "$ref":
            target = self._resolve(value, path)
            return [self.compile(target, path, depth)]
        if keyword == "allOf" and (not isinstance(value, list) or len(value) != 1):
            _refuse("grammar_unsupported", path)
        if not isinstance(value, list) or not value:
            _refuse("grammar_bad_schema", path)
        nodes = [self.compile(item, (*path, str(i)), depth + 1) for i, item in enumerate(value)]
        if keyword == "oneOf":
            for i, node in enumerate(nodes):
                if not all(are_disjoint(other, node) for other in nodes[:i]):
                    _refuse("grammar_unsupported", path)
        return nodes

    def _resolve(self, reference: Any, path: Path) -> Any:
        if not _is_text(reference) or not reference.startswith("#"):
            _refuse("grammar_bad_schema", path)
        found = self.root
        for step in reference[1:].split("/")[1:]:
            if not isinstance(found, dict) or "~" in step or "%" in step or step not in found:
                _refuse("grammar_bad_schema", path)
            found = found[step]
        if reference[1:2] not in ("", "/"):
            _refuse("grammar_bad_schema", path)
        return found

    def _literals(self, schema: dict[str, Any], present: set[str], path: Path) -> Literals:
        keyword = "enum" if "enum" in present else "const"
        types = _types(schema, path)
        if present - {"type", keyword}:
            _refuse("grammar_unsupported", (*path, keyword))
        members = [schema["const"]] if keyword == "const" else schema["enum"]
        if not isinstance(members, list):
            _refuse("grammar_bad_schema", (*path, keyword))
        texts = set()
        for member in members:
            if not _has_type(member, types):
                continue
            literal = _text_of(member, (*path, keyword))
            self.literal_bytes += len(literal)
            texts.add(literal)
            if not all(_decimal(number) for number in _numbers_in(member)):
                _refuse("grammar_limit", (*path, keyword))
        if not texts:
            _refuse("grammar_empty", (*path, keyword))
        return Literals(sorted(texts))

    def _string(self, schema: dict[str, Any], path: Path) -> String:
        least = _count(schema, "minLength", 0, COUNT_MAX, path)
        most = _count(schema, "maxLength", NO_LIMIT, NO_LIMIT - 1, path)
        if "pattern" not in schema:
            return String(least, most)
        where = (*path, "pattern")
        if not _is_text(schema["pattern"]):
            _refuse("grammar_bad_schema", where)
        try:
            pattern = compile_pattern(schema["pattern"])
        except UnsupportedPatternError as error:
            _refuse("grammar_limit" if error.is_limit else "grammar_unsupported", where)
        self.positions += len(pattern.ranges)
        if pattern.shortest is None or least <= pattern.shortest:
            return String(0, most, pattern)  # the pattern sees to it
        if least > LENGTHS_MAX or len(pattern.ranges) > LENGTHS_MAX + 1:
            _refuse("grammar_limit", (*path, "minLength"))
        return String(least, most, pattern)

    def _array(self, schema: dict[str, Any], path: Path, depth: int) -> Array:
        least = _count(schema, "minItems", 0, COUNT_MAX, path)
        most = _count(schema, "maxItems", NO_LIMIT, NO_LIMIT - 1, path)
        items = schema.get("items", True)
        if isinstance(items, list):
            _refuse("grammar_unsupported", (*path, "items"))
        return Array(self.compile(items, (*path, "items"), depth + 1), least, most)

    def _object(self, schema: dict[str, Any], path: Path, depth: int) -> Object:
        extra = None
        if schema.get("additionalProperties", False) is not False:
            extra_path = (*path, "additionalProperties")
            extra = self.compile(schema["additionalProperties"], extra_path, depth + 1)
        declared, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(declared, dict):
            _refuse("grammar_bad_schema", (*path, "properties"))
        where = (*path, "properties")
        values = {name: self.compile(value, (*where, name), depth + 2) for name, value in declared.items()}
        properties: dict[bytes, Node] = {}
        for name, node in values.items():
            self._declare(properties, name, node, extra, (*where, name))
        if not isinstance(required, list):
            _refuse("grammar_bad_schema", (*path, "required"))
        for name in required:
            if not _is_text(name):
                _refuse("grammar_bad_schema", (*path, "required"))
            if extra is not None and _property_text(name, ()) not in properties:
                self._declare(properties, name, extra, extra, (*path, "required", name))
        for name in required:
            if _property_text(name, (*path, "required", name)) not in properties:
                _refuse("grammar_empty", (*path, "required", name))
        needed = frozenset(_property_text(name, ()) for name in required)
        return Object(dict(sorted(properties.items())), needed, extra)

    def _declare(
        self, properties: dict[bytes, Node], name: str, node: Node, extra: Node | None, path: Path
    ) -> None:
        text = _property_text(name, path)
        if extra is not None and b"\\" in text:
            _refuse("grammar_unsupported", path)  # an undeclared name could be the same in another spelling
        if len(properties) == PROPERTIES_MAX:
            _refuse("grammar_limit", path)
        self.literal_bytes += len(text)
        properties[text] = node


def _refuse(code: str, path: Iterable[str]) -> NoReturn:
    words = {
        "grammar_bad_schema": "is not what docs/grammar.md allows there",
        "grammar_unsupported": "cannot be enforced while a call is written",
        "grammar_limit": "is beyond a limit of docs/grammar.md",
        "grammar_empty": "no value satisfies it",
    }
    where = "/".join("".join(c if "!" <= c <= "~" else "?" for c in step) for step in path)
    raise GrammarError(f"tools: {where}: {words[code]}", code=code)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice in one object")
    if len(pairs) > JSON_MEMBERS_MAX:
        raise ValueError(f"an object has more than {JSON_MEMBERS_MAX} members")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_json(value: Any, depth: int) -> None:
    """Nesting, and characters: a lone surrogate is none."""
    if depth >= JSON_DEPTH_MAX:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, dict):
        for key, item in value.items():
            key.encode("utf-8")
            _check_json(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json(item, depth + 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, JsonNumber)


def _is_extension(key: str) -> bool:
    return key.startswith("x-") and len(key) > 2


def _text_of(value: Any, path: Path) -> bytes:
    """The one spelling of a value that the grammar knows: no white space, no escape that need not be."""
    if isinstance(value, JsonNumber):
        return value.encode()
    if isinstance(value, list):
        return b"[" + b",".join(_text_of(item, path) for item in value) + b"]"
    if isinstance(value, dict):
        members = (_text_of(key, path) + b":" + _text_of(item, path) for key, item in value.items())
        return b"{" + b",".join(members) + b"}"
    text = json.dumps(value, ensure_ascii=False)
    if SPACE_MARK in text:
        _refuse("grammar_unsupported", path)  # no tokenizer gives it back
    return text.encode()


def _property_text(name: str, path: Path) -> bytes:
    return _text_of(name, path) + b":"


def _types(schema: dict[str, Any], path: Path) -> set[str]:
    value = schema.get("type", list(TYPES))
    names = value if isinstance(value, list) else [value]
    if not names or not all(_is_text(name) and name in TYPES for name in names):
        _refuse("grammar_bad_schema", (*path, "type"))
    return set(names)


def _has_type(value: Any, types: set[str]) -> bool:
    if isinstance(value, JsonNumber):
        return "number" in types or ("integer" in types and not set(value) & set(".eE"))
    names = {bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)] in types


def _numbers_in(value: Any) -> list[JsonNumber]:
    if isinstance(value, JsonNumber):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for item in items for number in _numbers_in(item)]


def _decimal(text: str) -> tuple[int, int] | None:
    """A number as (digits, decimals), as few as possible; None beyond 18 digits."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = int(whole.lstrip("-") + fraction)
    if len(str(digits)) > DIGITS_MAX and digits:
        return None
    shift = max(-(10**6), min(10**6, int((exponent or "0")[:9]))) - len(fraction)
    while digits and digits % 10 == 0 and shift < 0:
        digits, shift = digits // 10, shift + 1
    if digits == 0:
        shift = 0
    if (shift > 0 and len(str(digits)) + shift > DIGITS_MAX) or shift < -DIGITS_MAX:
        return None
    sign = -1 if text.startswith("-") else 1
    return sign * digits * 10 ** max(shift, 0), max(-shift, 0)


def _count(schema: dict[str, Any], keyword: str, otherwise: int, limit: int, path: Path) -> int:
    if keyword not in schema:
        return otherwise
    where = (*path, keyword)
    if not isinstance(schema[keyword], JsonNumber):
        _refuse("grammar_bad_schema", where)
    decimal = _decimal(schema[keyword])
    if decimal is None:
        _refuse("grammar_limit", where)
    if decimal[0] < 0 or decimal[1] > 0:
        _refuse("grammar_bad_schema", where)
    if decimal[0] > limit and limit == COUNT_MAX:
        _refuse("grammar_limit", where)
    return min(decimal[0], limit)


def _number_rule(schema: dict[str, Any], path: Path, *, is_integer: bool) -> NumberRule:
    """Bounds in units of the last decimal. A `number` has as many digits as binary64 tells apart."""
    lower = next((key for key in ("minimum", "exclusiveMinimum") if key in schema), None)
    upper = next((key for key in ("maximum", "exclusiveMaximum") if key in schema), None)
    digits, decimals = DIGITS_MAX, 0
    if not is_integer:
        if not lower and not upper and "multipleOf" not in schema:
            return NumberRule()
        digits = max(_whole_digits(schema.get(key or "")) for key in (lower, upper))
        if not lower or not upper:
            digits = max(digits, DECIMALS_MAX)
        if digits > BOUNDED_DIGITS_MAX:
            _refuse("grammar_limit", (*path, upper or lower or ""))
        decimals = min(DECIMALS_MAX, BOUNDED_DIGITS_MAX - digits)
    high = 10 ** (digits + decimals) - 1
    low = -high
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        bound = _bound(schema, keyword, decimals, path)
        if bound is None:
            continue
        floor, is_exact = bound
        if not is_exact and not is_integer:
            _refuse("grammar_limit", (*path, keyword))
        is_exclusive = keyword.startswith("exclusive")
        if keyword.lower().endswith("minimum"):
            low = max(low, floor + (not is_exact or is_exclusive))
        else:
            high = min(high, floor - (is_exact and is_exclusive))
    step = _step(schema, decimals, path, is_integer=is_integer)
    return NumberRule(True, digits, decimals, low, high, step)


def _whole_digits(value: Any) -> int:
    decimal = _decimal(value) if isinstance(value, JsonNumber) else None
    return len(str(abs(decimal[0]) // 10 ** decimal[1])) if decimal else 1


def _bound(schema: dict[str, Any], keyword: str, decimals: int, path: Path) -> tuple[int, bool] | None:
    """A bound in units of 10^-decimals, rounded down, and whether it had not to be."""
    if keyword not in schema:
        return None
    where = (*path, keyword)
    if not isinstance(schema[keyword], JsonNumber):
        _refuse("grammar_unsupported", where)  # a Boolean was an older draft's meaning
    decimal = _decimal(schema[keyword])
    if decimal is None or abs(decimal[0] * 10 ** max(decimals - decimal[1], 0)) >= 2**63 - 10**9:
        _refuse("grammar_limit", where)
    if decimal[1] <= decimals:
        return decimal[0] * 10 ** (decimals - decimal[1]), True
    return decimal[0] // 10 ** (decimal[1] - decimals), False


def _step(schema: dict[str, Any], decimals: int, path: Path, *, is_integer: bool) -> int:
    bound = _bound(schema, "multipleOf", decimals, path)
    if bound is None:
        return 1
    step, is_exact = bound
    if is_exact and step <= 0:
        _refuse("grammar_bad_schema", (*path, "multipleOf"))
    if not is_exact or (not is_integer and step % 5**decimals != 0):
        _refuse("grammar_unsupported", (*path, "multipleOf"))  # validators divide in binary64
    return step
