"""The binary coder of docs/formats/patch.md, bit by bit: slow, plain, only to say what a stream holds.

Owns: probability states, trees, numbers, side entries, and how many bits of a stream have been used.
Does not know: what the numbers mean (row_costs.py). What a patch rebuilds is decoded by the engine alone.
"""

from __future__ import annotations

import math

EVEN = 32768
PAST_END_MAX = 4
NUMBER_LENGTHS, SIDE_LENGTHS = 33, 16
MODELLED_BITS = 3

State = list[int]
"""Fast and slow running mean of the probability of a 0, in 1/65536."""


def states(count: int) -> list[State]:
    """Fresh states, all even."""
    return [[EVEN, EVEN] for _ in range(count)]


class NumberModel:
    """States of a number with a sign."""

    def __init__(self, length_depth: int, length_count: int) -> None:
        self.length_depth = length_depth
        self.length = states(1 << length_depth)
        self.head = [states(1 << MODELLED_BITS) for _ in range(length_count)]
        self.sign: State = [EVEN, EVEN]


def number_model() -> NumberModel:
    """For numbers of 32 bits."""
    return NumberModel(6, NUMBER_LENGTHS)


def side_model() -> NumberModel:
    """For entries of P and Q, whose sign is even."""
    return NumberModel(4, SIDE_LENGTHS)


class RangeDecoder:
    """One stream. A damaged one gives numbers too, but not for long: see `is_overrun`."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._next = bytes(data), 4
        self._range, self._code = 2**32 - 1, int.from_bytes(self._data[:4].ljust(4, b"\0"))

    @property
    def is_overrun(self) -> bool:
        """More was read than there is, or what no encoder writes."""
        return self._next > len(self._data) + PAST_END_MAX

    @property
    def is_spent(self) -> bool:
        """Exactly the stream's bytes were needed: an encoder leaves out up to four zeros at the end."""
        return len(self._data) <= self._next <= len(self._data) + PAST_END_MAX

    @property
    def used_bits(self) -> float:
        """Information read so far."""
        return 8 * self._next - math.log2(self._range)

    def bit(self, state: State) -> int:
        """One bit, from which its state learns."""
        fast, slow = state
        bound = (self._range >> 12) * ((fast + slow) >> 5)
        if self._code < bound:
            self._range = bound
            state[0], state[1] = fast + ((65535 - fast) >> 4), slow + ((65535 - slow) >> 7)
            value = 0
        else:
            self._code -= bound
            self._range -= bound
            state[0], state[1] = fast - (fast >> 4), slow - (slow >> 7)
            value = 1
        if self._range < 1 << 24:
            self._refill()
        return value

    def even(self, count: int) -> int:
        """Bits without a state."""
        value = 0
        for _ in range(count):
            self._range >>= 1
            bit = self._code >= self._range
            self._code -= self._range if bit else 0
            value = value << 1 | bit
            if self._range < 1 << 24:
                self._refill()
        return value

    def tree(self, nodes: list[State], depth: int) -> int:
        """`depth` bits, highest first."""
        node = 1
        for _ in range(depth):
            node = node << 1 | self.bit(nodes[node])
        return node - (1 << depth)

    def size(self, model: NumberModel) -> int:
        """A number without its sign."""
        length = self.tree(model.length, model.length_depth)
        if length >= len(model.head):
            self._next = len(self._data) + PAST_END_MAX + 1
            return 0
        if length < 2:
            return length
        modelled = min(length - 1, MODELLED_BITS)
        rest = length - 1 - modelled
        return (self.tree(model.head[length], modelled) | 1 << modelled) << rest | self.even(rest)

    def signed(self, model: NumberModel) -> int:
        """A number with a modelled sign; of its size if it is 0."""
        size = self.size(model)
        return -size if size and self.bit(model.sign) else size

    def side(self, model: NumberModel) -> int:
        """An entry of P or Q."""
        size = self.size(model)
        return -size if size and self.even(1) else size

    def _refill(self) -> None:
        while self._range < 1 << 24:
            byte = self._data[self._next] if self._next < len(self._data) else 0
            self._next += 1
            self._range <<= 8
            self._code = self._code << 8 | byte
