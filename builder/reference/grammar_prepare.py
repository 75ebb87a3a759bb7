"""What each shape needs: bytes, open values and readings, by relaxing until nothing changes.

Owns: `cost`, `need`, `live` and `shortest` of shapes, and the refusal of tools that have no call.
Does not know: schemas, tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from builder.errors import GrammarError
from builder.reference.grammar_automaton import FRAMES_MAX, Frame, may_close, shortest_value, takes
from builder.reference.grammar_shapes import (
    Array,
    Call,
    Choice,
    Literals,
    Node,
    Number,
    Object,
    String,
    flat,
    starts_of,
)

THREADS_MAX = 8
COST_MAX = 1 << 24


def prepare(root: Array) -> list[Node]:
    """Flattens choices and fills in `cost`, `need` and `live` of every shape that can be reached.

    Raises `GrammarError` (grammar_empty, grammar_limit) for a tool without a call, or without room for one.
    """
    nodes = _reachable(root)
    flattened = {node: flat(node) for node in nodes if isinstance(node, Choice)}
    for choice, alternatives in flattened.items():
        choice.alternatives = alternatives
    _relax_costs(nodes)
    _relax_depths(nodes)
    assert isinstance(root.items, Call)
    for head, shape in root.items.heads.items():
        name = head[len(b'{"name":"') : -len(b'","arguments":')].decode()
        if shape.cost is None:
            raise GrammarError(f"tools: {name}: no value satisfies it", code="grammar_empty")
        if shape.live > THREADS_MAX or shape.need + 2 > FRAMES_MAX:
            raise GrammarError(f"tools: {name}: is beyond a limit of docs/grammar.md", code="grammar_limit")
    return nodes


def _children(node: Node) -> list[Node]:
    if isinstance(node, Choice):
        return node.alternatives
    if isinstance(node, Call):
        return list(node.heads.values())
    if isinstance(node, Array):
        return [node.items]
    if isinstance(node, Object):
        return [*node.properties.values(), *([node.extra] if node.extra is not None else [])]
    return []


def _reachable(root: Node) -> list[Node]:
    found: dict[Node, None] = {root: None}
    waiting = [root]
    while waiting:
        fresh = [child for child in _children(waiting.pop()) if child not in found]
        found |= dict.fromkeys(fresh)
        waiting += fresh
    return list(found)


def _relax_costs(nodes: Iterable[Node]) -> None:
    moved = True
    while moved:
        moved = False
        for node in nodes:
            cost = _cost(node)
            if cost is not None and (node.cost is None or cost < node.cost):
                node.cost, moved = min(cost, COST_MAX), True


def _cost(node: Node) -> int | None:
    if isinstance(node, Choice):
        known = [other for other in node.alternatives if other.cost is not None]
        node.shortest = min(known, key=lambda other: other.cost or 0, default=None)
        return node.shortest.cost if node.shortest else None
    if isinstance(node, Literals):
        return min(map(len, node.texts))
    if isinstance(node, Number):
        rule = node.rule
        return len(rule.finish("")) if any(map(rule.may_become, "-0123456789")) else None
    if isinstance(node, String):
        return _string_cost(node)
    if isinstance(node, Array):
        if not node.least:
            return 2
        if node.least > node.most or node.items.cost is None:
            return None
        return 1 + node.least * (node.items.cost + 1)
    if isinstance(node, Object):
        costs = [(name, node.properties[name].cost) for name in node.required]
        if any(cost is None for _, cost in costs):
            return None
        return 2 + sum(len(name) + (cost or 0) for name, cost in costs) + max(len(costs) - 1, 0)
    assert isinstance(node, Call)
    ways = [len(head) + shape.cost + 1 for head, shape in node.heads.items() if shape.cost is not None]
    return min(ways, default=None)


def _string_cost(node: String) -> int | None:
    if node.pattern is None:
        return 2 + node.least if node.least <= node.most else None
    frame = Frame(node)
    is_possible = may_close(node, frame) or takes(node, frame, 0, 0x10FFFF)
    return len(shortest_value(node)) if is_possible else None


def _relax_depths(nodes: Iterable[Node]) -> None:
    moved = True
    while moved:
        moved = False
        for node in nodes:
            need, live = _need_of(node), min(_live(node), THREADS_MAX + 1)
            moved |= (need, live) != (node.need, node.live)
            node.need, node.live = need, live


def _need_of(node: Node) -> int:
    below: list[Node] = []
    if node.cost is None:
        return FRAMES_MAX + 1
    if isinstance(node, Choice):
        assert node.shortest is not None
        return node.shortest.need
    if isinstance(node, Array) and node.least:
        below = [node.items]
    elif isinstance(node, Object):
        below = [node.properties[name] for name in node.required]
    elif isinstance(node, Call):
        shapes = [(len(head) + (shape.cost or 0), shape) for head, shape in node.heads.items() if shape.cost]
        below = [min(shapes, key=lambda item: item[0])[1]]
    return min(max((other.need for other in below), default=0) + 1, FRAMES_MAX + 1)


def _live(node: Node) -> int:
    if not isinstance(node, Choice):
        return max((other.live for other in _children(node)), default=1)
    possible = [other for other in node.alternatives if other.cost is not None]
    kinds = {kind for other in possible for kind in starts_of(other)}
    sums = [sum(o.live for o in possible if kind in starts_of(o)) for kind in kinds - {"{"}]
    return max([*sums, _objects_live([other for other in possible if "{" in starts_of(other)])], default=1)


def _objects_live(nodes: list[Node]) -> int:
    """As many as there are while a name is written, then those that have this name."""
    objects = [node for node in nodes if isinstance(node, Object)]
    if len(nodes) > THREADS_MAX:
        return len(nodes)
    names = {name for node in objects for name in node.properties} | {b""}
    values = [[node.properties.get(name, node.extra) for node in objects] for name in names]
    return max(len(nodes), *(sum(value.live for value in row if value is not None) for row in values))
