"""A text of calls, byte by byte: what may come next, and the shortest end.

A place is a set of threads; a thread is a stack of open values. The top one takes a byte, opens another on
top, or ends and leaves the byte to the one below. A byte is taken only if an end can still be reached.

Owns: docs/grammar.md, "Places" and "The shortest end". Does not know: schemas, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from builder.reference.grammar_pattern import Pattern, Window
from builder.reference.grammar_shapes import (
    Array,
    Call,
    Choice,
    Literals,
    Node,
    Number,
    Object,
    String,
    starts_of,
)

FRAMES_MAX = 32
ESCAPES = dict(zip(b'"\\bfnrt', b'"\\\b\f\n\r\t', strict=True))
"""What may stand behind a backslash, in this order, and what it means."""
KEY_ENDINGS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
SPACE_MARK = b"\xe2\x96\x81"


@dataclass(frozen=True)
class Frame:
    """An open value: its shape, what is under way in it, and what it holds so far."""

    node: Node
    phase: str = "start"
    text: bytes = b""
    """Of a literal, a number, a property's name, a character or an escape: the bytes so far."""
    count: int = 0
    """Items of an array, characters of a string."""
    positions: frozenset[int] | None = None
    seen: frozenset[bytes] = frozenset()


Thread = tuple[Frame, ...]
Place = tuple[Thread, ...]
Moved = tuple[Thread, bool] | None
"""What replaces the top frame, and whether the byte was taken; None if it does not fit."""


def start(root: Node) -> Place:
    """The place before the first byte."""
    return ((Frame(root),),)


def step(place: Place, byte: int) -> Place:
    """The place behind a byte; empty if it does not fit."""
    threads = [moved for thread in place for moved in _step_thread(thread, byte)]
    return tuple(dict.fromkeys(threads))


def is_done(place: Place) -> bool:
    """Whether the list of calls is closed."""
    return () in place


def fits(node: Node, depth: int) -> bool:
    """Whether a value may open on top of `depth` others."""
    return node.cost is not None and depth + node.need <= FRAMES_MAX


def _step_thread(thread: Thread, byte: int) -> list[Thread]:
    while thread:
        *below, top = thread
        if isinstance(top.node, Choice):
            fitting = [node for node in top.node.alternatives if _can_start(node, byte, len(below))]
            return [moved for node in fitting for moved in _step_thread((*below, Frame(node)), byte)]
        result = _step_frame(top, byte, len(thread))
        if result is None:
            return []
        frames, is_taken = result
        thread = (*below, *frames)
        if is_taken:
            return [thread]
    return []


def _can_start(node: Node, byte: int, depth: int) -> bool:
    kind = "0" if byte in b"-0123456789" else chr(byte)
    return kind in starts_of(node) and fits(node, depth)


def _step_frame(frame: Frame, byte: int, depth: int) -> Moved:
    node = frame.node
    if isinstance(node, Literals):
        return _step_literals(node, frame, byte)
    if isinstance(node, String):
        return _step_string(node, frame, byte)
    if isinstance(node, Number):
        return _step_number(node, frame, byte)
    if isinstance(node, Array):
        return _step_array(node, frame, byte, depth)
    if isinstance(node, Object):
        return _step_object(node, frame, byte, depth)
    assert isinstance(node, Call)
    return _step_call(node, frame, byte)


def _step_literals(node: Literals, frame: Frame, byte: int) -> Moved:
    longer = frame.text + bytes([byte])
    if any(text.startswith(longer) for text in node.texts):
        return (replace(frame, text=longer),), True
    return ((), False) if frame.text in node.texts else None


def _step_call(node: Call, frame: Frame, byte: int) -> Moved:
    if frame.phase == "close":
        return ((), True) if byte == ord("}") else None
    longer = frame.text + bytes([byte])
    if longer in node.heads:
        return (Frame(node, "close"), Frame(node.heads[longer])), True
    if any(head.startswith(longer) for head in node.heads):
        return (replace(frame, text=longer),), True
    return None


def _step_number(node: Number, frame: Frame, byte: int) -> Moved:
    longer = frame.text + bytes([byte])
    if byte < 0x80 and node.rule.may_become(longer.decode()):
        return (replace(frame, text=longer),), True
    return ((), False) if node.rule.is_value(frame.text.decode()) else None


def _step_array(node: Array, frame: Frame, byte: int, depth: int) -> Moved:
    if frame.phase == "start":
        return ((Frame(node, "first"),), True) if byte == ord("[") else None
    if byte == ord("]") and frame.phase != "next":
        return ((), True) if frame.count >= node.least else None
    if frame.count >= node.most or not fits(node.items, depth):
        return None
    if frame.phase == "after":
        return ((replace(frame, phase="next"),), True) if byte == ord(",") else None
    return (Frame(node, "after", count=frame.count + 1), Frame(node.items)), False


# ---- Objects ----


def usable(node: Object, frame: Frame, depth: int) -> list[bytes]:
    """The properties that may still be named."""
    return [name for name, value in node.properties.items() if name not in frame.seen and fits(value, depth)]


def may_be_undeclared(node: Object, depth: int) -> bool:
    """Whether a name that is not declared may stand here."""
    return node.extra is not None and fits(node.extra, depth)


def _step_object(node: Object, frame: Frame, byte: int, depth: int) -> Moved:
    names, is_open = usable(node, frame, depth), may_be_undeclared(node, depth)
    if frame.phase == "key":
        return (_step_open_key if is_open else _step_declared_key)(node, frame, byte, names)
    if frame.phase == "colon":
        return _open_value(node, frame) if byte == ord(":") else None
    if frame.phase == "start":
        return ((Frame(node, "first"),), True) if byte == ord("{") else None
    if byte == ord("}") and frame.phase != "next":
        return ((), True) if node.required <= frame.seen else None
    if not names and not is_open:
        return None
    if frame.phase == "after":
        return ((replace(frame, phase="next"),), True) if byte == ord(",") else None
    return ((replace(frame, phase="key", text=b'"'),), True) if byte == ord('"') else None


def _step_declared_key(node: Object, frame: Frame, byte: int, names: list[bytes]) -> Moved:
    longer = replace(frame, text=frame.text + bytes([byte]))
    if longer.text in names:
        return _open_value(node, longer)
    return ((longer,), True) if any(name.startswith(longer.text) for name in names) else None


def _step_open_key(node: Object, frame: Frame, byte: int, names: list[bytes]) -> Moved:
    longer = replace(frame, text=frame.text + bytes([byte]))
    if byte == ord('"') and not _pending(frame.text):
        may_end = longer.text + b":" in names or longer.text + b":" not in node.properties
        return ((replace(longer, phase="colon"),), True) if may_end else None
    if byte < 0x20 or byte in b'"\\' or not _is_start_of_utf8(longer.text):
        return None
    return (longer,), True


def _open_value(node: Object, frame: Frame) -> Moved:
    """The colon behind a name: its value opens."""
    name = frame.text if frame.text.endswith(b":") else frame.text + b":"
    value = node.properties.get(name, node.extra)
    assert value is not None
    seen = frame.seen | {name} if name in node.properties else frame.seen
    return (Frame(node, "after", seen=seen), Frame(value)), True


def _pending(text: bytes) -> bytes:
    """The bytes of a character at the end of the text that is not complete."""
    for length in (1, 2, 3):
        tail = text[-length:]
        if tail and tail[0] >= 0xC0:
            return tail if length < _need(tail[0]) else b""
    return b""


def _need(lead: int) -> int:
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _is_start_of_utf8(text: bytes) -> bool:
    """Whether whole characters stand in the text and perhaps a part of one, and U+2581 does not."""
    if SPACE_MARK in text:
        return False
    tail = _pending(text)
    try:
        text[: len(text) - len(tail)].decode()
    except UnicodeDecodeError:
        return False
    return not tail or bool(_characters_of(tail))


def _characters_of(start: bytes) -> range:
    """The characters of two bytes or more whose bytes begin like this; empty if there is none."""
    need = _need(start[0])
    if not 0xC2 <= start[0] <= 0xF4 or any(not 0x80 <= byte <= 0xBF for byte in start[1:]):
        return range(0)
    bits = start[0] & (0x7F >> need)
    for byte in start[1:]:
        bits = bits << 6 | byte & 0x3F
    shift = 6 * (need - len(start))
    low, high = bits << shift, (bits + 1) << shift
    low = max(low, {2: 0x80, 3: 0x800, 4: 0x10000}[need])
    high = min(high, 0x110000)
    if low >= 0xD800 and high <= 0xE000:
        return range(0)
    return range(low, min(high, 0xD800) if low < 0xD800 < high else high)


# ---- Strings ----


def _step_string(node: String, frame: Frame, byte: int) -> Moved:
    if frame.phase == "start":
        return ((Frame(node, "body"),), True) if byte == ord('"') else None
    if frame.phase == "character":
        return _within_character(node, frame, frame.text + bytes([byte]))
    if frame.phase == "escape":
        return _step_escape(node, frame, byte)
    if byte == ord('"'):
        return ((), True) if may_close(node, frame) else None
    if byte == ord("\\"):
        could = any(takes(node, frame, code, code) for code in ESCAPES.values())
        return ((replace(frame, phase="escape", text=b"\\"),), True) if could else None
    if byte < 0x20:
        return None
    if byte < 0x80:
        return _take(node, frame, byte)
    return _within_character(node, frame, bytes([byte]))


def may_close(node: String, frame: Frame) -> bool:
    """Whether the string may end here."""
    is_match = node.pattern is None or node.pattern.accepts(frame.positions)
    return is_match and frame.count >= node.least


def _window(node: String, count: int) -> Window:
    """What the string's lengths leave behind the character after `count` others."""
    return max(node.least - count - 1, 0), node.most - count - 1


def takes(node: String, frame: Frame, low: int, high: int) -> bool:
    """Whether a character of `low` to `high` may come next."""
    if frame.count >= node.most:
        return False
    if node.pattern is None:
        return True
    return bool(node.pattern.next(frame.positions, low, high, _window(node, frame.count)))


def _take(node: String, frame: Frame, code: int) -> Moved:
    if not takes(node, frame, code, code):
        return None
    positions = None
    if node.pattern is not None:
        positions = node.pattern.next(frame.positions, code, code, _window(node, frame.count))
    return (Frame(node, "body", count=frame.count + 1, positions=positions),), True


def _within_character(node: String, frame: Frame, text: bytes) -> Moved:
    characters = _characters_of(text)
    if not characters:
        return None
    if len(text) == _need(text[0]):
        return None if text == SPACE_MARK else _take(node, frame, characters[0])
    if not takes(node, frame, characters[0], characters[-1]):
        return None
    return (replace(frame, phase="character", text=text),), True


def _step_escape(node: String, frame: Frame, byte: int) -> Moved:
    longer = frame.text + bytes([byte])
    if frame.text == b"\\":
        if byte in ESCAPES:
            return _take(node, frame, ESCAPES[byte])
        if node.pattern is not None or byte not in b"/u":
            return None
        return _take(node, frame, byte) if byte == ord("/") else ((replace(frame, text=longer),), True)
    digits = longer[2:].decode("ascii", "replace").lower()
    if any(digit not in "0123456789abcdef" for digit in digits) or "d8" <= digits[:2] <= "df":
        return None
    return _take(node, frame, int(digits, 16)) if len(digits) == 4 else ((replace(frame, text=longer),), True)


# ---- The shortest end ----


def finish(thread: Thread) -> bytes:
    """The bytes that end the text, by rules that are fixed."""
    return b"".join(_finish_frame(thread[depth - 1], depth) for depth in range(len(thread), 0, -1))


def shortest_value(node: Node) -> bytes:
    """A whole value by the same rules."""
    return _finish_frame(Frame(node), 0)


def _finish_frame(frame: Frame, depth: int) -> bytes:
    node = frame.node
    if isinstance(node, Choice):
        assert node.shortest is not None
        return shortest_value(node.shortest)
    if isinstance(node, Literals):
        fitting = [text for text in node.texts if text.startswith(frame.text)]
        return min(fitting, key=len)[len(frame.text) :]
    if isinstance(node, Number):
        return node.rule.finish(frame.text.decode()).encode()
    if isinstance(node, String):
        return _finish_string(node, frame)
    if isinstance(node, Array):
        return _finish_array(node, frame)
    if isinstance(node, Object):
        return _finish_object(node, frame, depth)
    assert isinstance(node, Call)
    if frame.phase == "close":
        return b"}"
    heads = [head for head in node.heads if head.startswith(frame.text) and node.heads[head].cost is not None]
    best = min(heads, key=lambda head: len(head) + (node.heads[head].cost or 0))
    return best[len(frame.text) :] + shortest_value(node.heads[best]) + b"}"


def _finish_array(node: Array, frame: Frame) -> bytes:
    opening = b"[" if frame.phase == "start" else b""
    item = shortest_value(node.items) if frame.phase == "next" or frame.count < node.least else b""
    first = item if frame.phase == "next" else b""
    count = frame.count + bool(first)
    missing = max(node.least - count, 0)
    rest = b",".join([item] * missing)
    comma = b"," if count and missing else b""
    return opening + first + comma + rest + b"]"


def _finish_object(node: Object, frame: Frame, depth: int) -> bytes:
    text = b"{" if frame.phase == "start" else b""
    is_first = frame.phase in ("start", "first")
    seen = frame.seen
    if frame.phase == "next":
        text, frame = b'"', replace(frame, phase="key", text=b'"')
    if frame.phase in ("key", "colon"):
        name = frame.text
        if frame.phase == "key":
            rest = (_rest_of_open_key if may_be_undeclared(node, depth) else _rest_of_key)(node, frame, depth)
            text, name = text + rest, name + rest
        else:
            text, name = text + b":", name + b":"
        value = node.properties.get(name, node.extra)
        assert value is not None
        text += shortest_value(value)
        seen = seen | {name}
    for name, value in node.properties.items():
        if name in node.required - seen:
            text += (b"" if is_first else b",") + name + shortest_value(value)
            is_first = False
    return text + b"}"


def _rest_of_key(node: Object, frame: Frame, depth: int) -> bytes:
    """Of the names that fit: the first that is required, else the one with the shortest rest and value."""
    fitting = [name for name in usable(node, frame, depth) if name.startswith(frame.text)]
    required = [name for name in fitting if name in node.required]
    costs = {name: len(name) + (node.properties[name].cost or 0) for name in fitting}
    best = required[0] if required else min(costs, key=lambda name: costs[name])
    return best[len(frame.text) :]


def _rest_of_open_key(node: Object, frame: Frame, depth: int) -> bytes:
    """The first required name if it fits; else a character is completed with the smallest there is, and the
    name ends as soon as it may."""
    names, tail = usable(node, frame, depth), _pending(frame.text)
    for name in names:
        if name in node.required and name.startswith(frame.text):
            return name[len(frame.text) :]
    rest = b""
    if tail:
        whole = chr(_characters_of(tail)[0]).encode()
        rest = whole[len(tail) :]
    for ending in (b"", *(bytes([byte]) for byte in KEY_ENDINGS)):
        name = frame.text + rest + ending + b'":'
        if name in names or name not in node.properties:
            return rest + ending + b'":'
    raise AssertionError("there are more endings than properties")


def _finish_string(node: String, frame: Frame) -> bytes:
    text, code, is_within = b'"' if frame.phase == "start" else b"", 0, frame.phase in ("character", "escape")
    window = _window(node, frame.count)
    if frame.phase == "character":
        characters = _characters_of(frame.text)
        code = characters[0]
        if node.pattern is not None:
            code = _nearest(node.pattern, frame, characters[0], characters[-1], window)
        text = chr(code).encode()[len(frame.text) :]
    elif frame.text == b"\\":
        letter, code = _nearest_escape(node, frame)
        text = bytes([letter])
    elif frame.phase == "escape":
        text = b"0" * (6 - len(frame.text))
    if node.pattern is None:
        return text + b"a" * max(node.least - frame.count - is_within, 0) + b'"'
    count, positions = frame.count, frame.positions
    if is_within:
        positions, count = node.pattern.next(positions, code, code, window), count + 1
    while count < node.least or not node.pattern.accepts(positions):
        window = _window(node, count)
        code = _nearest(node.pattern, replace(frame, positions=positions), 0, 0x10FFFF, window)
        positions = node.pattern.next(positions, code, code, window)
        count += 1
        text += _spelt(code)
    return text + b'"'


def _nearest_escape(node: String, frame: Frame) -> tuple[int, int]:
    """The first escape; with a pattern, the one whose nearest position is nearest to an end."""
    if node.pattern is None:
        return next(iter(ESCAPES.items()))
    window = _window(node, frame.count)
    ways = []
    for letter, code in ESCAPES.items():
        found = node.pattern.next(frame.positions, code, code, window)
        nearest = min(((node.pattern.way(i, window) or 0, i) for i in found), default=None)
        if nearest is not None:
            ways.append((*nearest, code, letter))
    *_, code, letter = min(ways)
    return letter, code


def _nearest(pattern: Pattern, frame: Frame, low: int, high: int, window: Window) -> int:
    code = pattern.shortest_character(frame.positions, low, high, window)
    assert code is not None
    return code


def _spelt(code: int) -> bytes:
    letter = next((letter for letter, meant in ESCAPES.items() if meant == code), None)
    return chr(code).encode() if letter is None else b"\\" + bytes([letter])
