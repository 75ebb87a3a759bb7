"""Deterministic damage: what a fuzzer would try first, without one."""

from __future__ import annotations

import random
from collections.abc import Iterator

NUMBERS = (0, 1, 127, 128, 255, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The input in `count` damaged forms, each with up to three faults."""
    draw = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            draw.choice([_flip, _byte, _number, _cut, _copy])(draw, damaged)
        yield bytes(damaged)


def _place(draw: random.Random, data: bytearray) -> int:
    """Near the start in half of all cases: headers stand there."""
    most = max(len(data) - 1, 0)
    return draw.randint(0, min(most, 400) if draw.random() < 0.5 else most)


def _flip(draw: random.Random, data: bytearray) -> None:
    if data:
        data[_place(draw, data)] ^= 1 << draw.randrange(8)


def _byte(draw: random.Random, data: bytearray) -> None:
    if data:
        data[_place(draw, data)] = draw.randrange(256)


def _number(draw: random.Random, data: bytearray) -> None:
    at, size = _place(draw, data), draw.choice([1, 2, 4, 8])
    data[at : at + size] = (draw.choice(NUMBERS) % 256**size).to_bytes(size, "little")


def _cut(draw: random.Random, data: bytearray) -> None:
    at = _place(draw, data)
    del data[at : at + draw.choice([1, 2, 16, len(data)])]


def _copy(draw: random.Random, data: bytearray) -> None:
    start, at = _place(draw, data), _place(draw, data)
    data[at:at] = data[start : start + draw.choice([1, 4, 16, 64])]
