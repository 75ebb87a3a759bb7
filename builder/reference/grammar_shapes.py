"""The shapes that values of a call can have.

Owns: what a shape holds, what its values begin with, and whether two shapes have no value in common.
Does not know: schemas, bytes of an answer, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from builder.reference.grammar_number import NumberRule
from builder.reference.grammar_pattern import Pattern

NO_LIMIT = 2**32 - 1


@dataclass(eq=False)
class Node:
    """A shape of values. `cost` is the length of its shortest value in bytes, None while there is none."""

    cost: int | None = field(default=None, init=False)
    need: int = field(default=0, init=False)
    """Values that its shortest value holds open at once."""
    live: int = field(default=1, init=False)
    """Readings that it can hold open at once."""


@dataclass(eq=False)
class Literals(Node):
    """One of these texts, in order of their bytes."""

    texts: list[bytes]


@dataclass(eq=False)
class String(Node):
    """A string of `least` to `most` characters, perhaps one that a pattern matches."""

    least: int = 0
    most: int = NO_LIMIT
    pattern: Pattern | None = None


@dataclass(eq=False)
class Number(Node):
    """A number."""

    rule: NumberRule


@dataclass(eq=False)
class Array(Node):
    """Any number of items, from `least` to `most`."""

    items: Node
    least: int = 0
    most: int = NO_LIMIT


@dataclass(eq=False)
class Object(Node):
    """Properties by the text `"name":`, in order of its bytes; `extra` is what undeclared ones hold, where
    there may be any."""

    properties: dict[bytes, Node] = field(default_factory=dict)
    required: frozenset[bytes] = frozenset()
    extra: Node | None = None


@dataclass(eq=False)
class Call(Node):
    """A call: the text up to its arguments, and the arguments' shape; then a brace."""

    heads: dict[bytes, Node]


@dataclass(eq=False)
class Choice(Node):
    """One of several; after `flatten` none of them is a choice."""

    alternatives: list[Node] = field(default_factory=list)
    is_open: bool = False
    """While it is being compiled, nobody knows what is in it."""
    shortest: Node | None = field(default=None, init=False)


def flat(choice: Choice) -> list[Node]:
    """The alternatives of a choice, those of choices among them in their place's turn, each once."""
    found: list[Node] = list(dict.fromkeys(choice.alternatives))
    at = 0
    while at < len(found):
        node = found[at]
        if isinstance(node, Choice):
            found += [other for other in dict.fromkeys(node.alternatives) if other not in found]
        at += 1
    return [node for node in found if not isinstance(node, Choice)]


def are_disjoint(a: Node, b: Node, depth: int = 0) -> bool:
    """Whether it is certain that no value has both shapes."""
    if depth > 8:
        return False
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Choice):
            return not one.is_open and all(are_disjoint(node, other, depth + 1) for node in one.alternatives)
    if not starts_of(a) & starts_of(b):
        return True
    if isinstance(a, Literals) and isinstance(b, Literals):
        return not set(a.texts) & set(b.texts)
    if not isinstance(a, Object) or not isinstance(b, Object):
        return False
    return _needs_what_is_not_there(a, b, depth) or _needs_what_is_not_there(b, a, depth)


def _needs_what_is_not_there(a: Object, b: Object, depth: int) -> bool:
    for name in sorted(a.required):
        if name not in b.properties and b.extra is None:
            return True
        if name in b.required and are_disjoint(a.properties[name], b.properties[name], depth + 1):
            return True
    return False


def starts_of(node: Node) -> frozenset[str]:
    """What a value of this shape can begin with: its first byte, `0` for any number."""
    if isinstance(node, Literals):
        firsts = {chr(text[0]) for text in node.texts}
        return frozenset("0" if first in "-0123456789" else first for first in firsts)
    starts: dict[type, str] = {String: '"', Number: "0", Array: "[", Object: "{", Call: "{"}
    return frozenset(starts[type(node)])
