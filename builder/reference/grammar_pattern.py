"""Regular expressions of JSON Schema's `pattern`: the part that means the same in every validator.

Owns: reading an expression, and the automaton over its characters (Glushkov's: one position for each
character that is written, repetitions written out). docs/grammar.md says what the part is.
Does not know: JSON, bytes, schemas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

POSITIONS_MAX = 128
REPEAT_MAX = 1000
GROUP_DEPTH_MAX = 16
CLASS_RANGES_MAX = 64
CHARACTER_MAX = 0x10FFFF
DIGITS_AGREE_TOP, LETTERS_AGREE_TOP = 0x65F, 0x7F
"""Above these some validators know more digits, or letters, than others."""

LENGTHS_MAX = 63
Range = tuple[int, int]
Window = tuple[int, int]
"""How many characters may follow the next one, at least and at most."""
DIGITS: list[Range] = [(0x30, 0x39)]
LETTERS: list[Range] = [*DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
SPACES: list[Range] = [(9, 13), (32, 32)]
ALL_SPACES: list[Range] = [
    *SPACES,
    *((28, 31), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
]
LINE_ENDS: list[Range] = [(10, 10), (13, 13), (0x2028, 0x2029)]
SPELT: list[Range] = [(8, 10), (12, 13), (0x20, 0x2580), (0x2582, 0xD7FF), (0xE000, CHARACTER_MAX)]
"""What a string of the grammar can spell: no rare control character, and not U+2581."""
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


class UnsupportedPatternError(Exception):
    """The expression is not of the part; `is_limit` if it is only too large."""

    def __init__(self, *, is_limit: bool = False) -> None:
        super().__init__()
        self.is_limit = is_limit


@dataclass
class Part:
    """A piece of the automaton: where it may begin and end."""

    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    is_nullable: bool = True


@dataclass
class Pattern:
    """The automaton of one expression. `distances` count characters to the nearest end; what cannot reach it
    is left out."""

    ranges: list[list[Range]] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)
    whole: Part = field(default_factory=Part)
    distances: dict[int, int] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    """Bit k of a position's number: the end can be k characters away, up to `LENGTHS_MAX`."""

    @property
    def shortest(self) -> int | None:
        """Characters of the shortest match; None if there is none."""
        ways = [self.distances[position] + 1 for position in self.whole.first if position in self.distances]
        return 0 if self.whole.is_nullable else min(ways, default=None)

    def way(self, position: int, window: Window) -> int | None:
        """Characters to the nearest end that lies within the window; None if none does."""
        least, most = window
        if least == 0:
            distance = self.distances.get(position)
            return distance if distance is not None and distance <= most else None
        fitting = (k for k in range(least, min(most, LENGTHS_MAX) + 1) if self.lengths[position] >> k & 1)
        return next(fitting, None)

    def next(self, now: frozenset[int] | None, low: int, high: int, window: Window) -> frozenset[int]:
        """Positions after a character of `low` to `high` from which an end lies within the window.

        `now` is None before the first character.
        """
        candidates = self.whole.first if now is None else set().union(*(self.follow[i] for i in now))
        return frozenset(
            position
            for position in candidates
            if self.way(position, window) is not None
            and smallest(self.ranges[position], low, high) is not None
        )

    def accepts(self, now: frozenset[int] | None) -> bool:
        """Whether the text so far is a match."""
        return self.whole.is_nullable if now is None else bool(now & self.whole.last)

    def shortest_character(
        self, now: frozenset[int] | None, low: int, high: int, window: Window
    ) -> int | None:
        """The smallest character of the first position that is nearest to such an end."""
        found = self.next(now, low, high, window)
        if not found:
            return None
        nearest = min(sorted(found), key=lambda position: self.way(position, window) or 0)
        return smallest(self.ranges[nearest], low, high)


def smallest(ranges: Iterable[Range], low: int, high: int) -> int | None:
    """The smallest character of the ranges that is also one of `low` to `high`."""
    common = [max(first, low) for first, last in ranges if max(first, low) <= min(last, high)]
    return min(common, default=None)


def compile_pattern(source: str) -> Pattern:
    """The automaton of an expression. Raises `UnsupportedPatternError`."""
    reader = _Reader(source)
    pattern = reader.pattern
    pattern.whole = reader.alternatives(0)
    if reader.at < len(source):
        raise UnsupportedPatternError  # a bracket that none opened
    pattern.distances = {i: 0 for i in pattern.whole.last if pattern.ranges[i]}
    moved = True
    while moved:
        moved = False
        for position, follow in enumerate(pattern.follow):
            ways = [pattern.distances[i] + 1 for i in follow if i in pattern.distances]
            best = min(ways, default=None)
            if (
                best is not None
                and pattern.ranges[position]
                and best < pattern.distances.get(position, best + 1)
            ):
                pattern.distances[position] = best
                moved = True
    pattern.lengths = _lengths(pattern)
    return pattern


def _lengths(pattern: Pattern) -> list[int]:
    known = [int(pattern.distances.get(i) == 0) for i in range(len(pattern.ranges))]
    for _ in range(LENGTHS_MAX):
        for position, follow in enumerate(pattern.follow):
            for i in follow if pattern.ranges[position] else ():
                known[position] |= known[i] << 1 & (1 << (LENGTHS_MAX + 1)) - 1
    return known


def complement(ranges: Iterable[Range], top: int) -> list[Range]:
    """All characters up to `top` that are in none of the ranges."""
    result, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            result.append((start, min(low - 1, top)))
        start = max(start, high + 1)
    return [(low, high) for low, high in [*result, (start, top)] if low <= high]


class _Reader:
    """Recursive descent over the expression, building the automaton as it goes."""

    def __init__(self, source: str) -> None:
        self.source, self.at, self.pattern = source, 0, Pattern()

    def peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.source[place] if place < len(self.source) else ""

    def take(self, text: str) -> bool:
        found = self.source.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def alternatives(self, depth: int) -> Part:
        whole = Part(is_nullable=False)
        while True:
            part = self.sequence(depth) if depth else self.anchored()
            whole.first |= part.first
            whole.last |= part.last
            whole.is_nullable |= part.is_nullable
            if not self.take("|"):
                return whole

    def anchored(self) -> Part:
        """An alternative of the whole expression: without an anchor, anything may stand around it."""
        start = Part() if self.take("^") else self.anything()
        part = self.join(start, self.sequence(0))
        return part if self.take("$") else self.join(part, self.anything())

    def anything(self) -> Part:
        part = self.place([(0, CHARACTER_MAX)])
        self.link(part.last, part.first)
        part.is_nullable = True
        return part

    def sequence(self, depth: int) -> Part:
        whole = Part()
        while self.peek() not in ("", "|", ")"):
            if depth == 0 and self.peek() == "$" and self.peek(1) in ("", "|"):
                break
            whole = self.join(whole, self.repetition(depth))
        return whole

    def repetition(self, depth: int) -> Part:
        start = self.at
        copy = self.atom(depth)
        least, most = self.quantifier()
        end = self.at
        if (least, most) == (1, 1):
            return copy
        copies = max(least, 1) if most is None else most
        whole = Part()
        for count in range(copies):
            if count:
                self.at = start
                copy = self.atom(depth)
                self.at = end
            if most is None and count + 1 == copies:
                self.link(copy.last, copy.first)
            copy.is_nullable |= count >= least
            whole = self.join(whole, copy)
        return whole

    def quantifier(self) -> tuple[int, int | None]:
        least: int = 1
        most: int | None = 1
        if self.take("*"):
            least, most = 0, None
        elif self.take("+"):
            least, most = 1, None
        elif self.take("?"):
            least, most = 0, 1
        elif self.take("{"):
            first = self.count()
            last = self.count() if self.take(",") else first
            if not self.take("}") or first is None or (last is not None and last < first):
                raise UnsupportedPatternError
            least, most = first, last
        else:
            return least, most
        self.take("?")  # lazy: the same texts
        if self.peek() and self.peek() in "*+?{":
            raise UnsupportedPatternError
        return least, most

    def count(self) -> int | None:
        start = self.at
        while self.peek() in tuple("0123456789"):
            self.at += 1
        digits = self.source[start : self.at]
        if digits and int(digits) > REPEAT_MAX:
            raise UnsupportedPatternError(is_limit=True)
        return int(digits) if digits else None

    def atom(self, depth: int) -> Part:
        if self.take("("):
            return self.group(depth)
        if self.take("["):
            return self.character_class()
        if self.take("\\"):
            return self.backslash()
        if self.take("."):
            return self.place(complement(LINE_ENDS, CHARACTER_MAX))
        if self.peek() in tuple("^$*+?{}]"):
            raise UnsupportedPatternError
        return self.place([self.single()])

    def single(self) -> Range:
        self.at += 1
        code = ord(self.source[self.at - 1])
        return code, code

    def group(self, depth: int) -> Part:
        if self.take("?") and not self.take(":"):
            raise UnsupportedPatternError
        if depth == GROUP_DEPTH_MAX:
            raise UnsupportedPatternError(is_limit=True)
        part = self.alternatives(depth + 1)
        if not self.take(")"):
            raise UnsupportedPatternError
        return part

    def character_class(self) -> Part:
        is_negated = self.take("^")
        ranges: list[Range] = []
        top = CHARACTER_MAX
        if self.peek() == "]":
            raise UnsupportedPatternError  # empty here, a bracket there
        while self.peek() != "]":
            if not self.peek():
                raise UnsupportedPatternError
            named, name_top = self.named(is_negated) if self.peek() == "\\" else (None, top)
            top = min(top, name_top)
            item = named or [self.class_character()]
            if self.peek() == "-" and self.peek(1) != "]":
                self.at += 1
                if named or not self.peek() or (self.peek() == "\\" and self.peek(1) in ("d", "w", "s")):
                    raise UnsupportedPatternError
                item = [(item[0][0], self.class_character()[1])]
                if item[0][1] < item[0][0]:
                    raise UnsupportedPatternError
            ranges += item
            if len(ranges) > CLASS_RANGES_MAX:
                raise UnsupportedPatternError(is_limit=True)
        self.at += 1
        return self.place(complement(ranges, top) if is_negated else ranges)

    def class_character(self) -> Range:
        return self.escape() if self.take("\\") else self.single()

    def named(self, is_wide: bool) -> tuple[list[Range] | None, int]:
        """The characters of `\\d`, `\\w` or `\\s` if that comes next, and up to where validators agree.

        Wide, for a complement: whatever some validator counts in.
        """
        name = self.source[self.at : self.at + 2]
        known = {
            "\\d": (DIGITS, DIGITS_AGREE_TOP),
            "\\w": (LETTERS, LETTERS_AGREE_TOP),
            "\\s": (ALL_SPACES if is_wide else SPACES, CHARACTER_MAX),
        }
        if name not in known:
            return None, CHARACTER_MAX
        self.at += 2
        ranges, top = known[name]
        return ranges, top if is_wide else CHARACTER_MAX

    def backslash(self) -> Part:
        name = self.peek()
        if name and name in "dws":
            self.at -= 1
            ranges, _ = self.named(is_wide=False)
            return self.place(ranges or [])
        if name == "D":
            ranges = complement(DIGITS, DIGITS_AGREE_TOP)
        elif name == "W":
            ranges = complement(LETTERS, LETTERS_AGREE_TOP)
        elif name == "S":
            ranges = complement(ALL_SPACES, CHARACTER_MAX)
        else:
            return self.place([self.escape()])
        self.at += 1
        return self.place(ranges)

    def escape(self) -> Range:
        """What stands behind a backslash and means one character."""
        name = self.peek()
        self.at += 1
        if name in ESCAPES:
            code = ord(ESCAPES[name])
        elif name in ("x", "u"):
            code = self.hexadecimal(2 if name == "x" else 4)
        elif name and "!" <= name <= "~" and not (name.isalnum() or name == "_"):
            code = ord(name)
        else:
            raise UnsupportedPatternError
        return code, code

    def hexadecimal(self, count: int) -> int:
        digits = self.source[self.at : self.at + count]
        if len(digits) < count or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise UnsupportedPatternError
        self.at += count
        return int(digits, 16)

    def place(self, ranges: Iterable[Range]) -> Part:
        """A new position that takes these characters, so far as they can be spelt."""
        if len(self.pattern.ranges) == POSITIONS_MAX:
            raise UnsupportedPatternError(is_limit=True)
        position = len(self.pattern.ranges)
        clipped = [(max(a, low), min(b, high)) for a, b in ranges for low, high in SPELT]
        self.pattern.ranges.append([(low, high) for low, high in clipped if low <= high])
        self.pattern.follow.append(set())
        return Part({position}, {position}, is_nullable=False)

    def link(self, last: Iterable[int], first: Iterable[int]) -> None:
        for position in last:
            self.pattern.follow[position] |= set(first)

    def join(self, left: Part, right: Part) -> Part:
        self.link(left.last, right.first)
        first = left.first | right.first if left.is_nullable else left.first
        last = left.last | right.last if right.is_nullable else right.last
        return Part(set(first), set(last), left.is_nullable and right.is_nullable)
