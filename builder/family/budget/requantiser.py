"""Choosing codes in `maker.wasm` (`engine/src/requantise.c`).

Owns: moving tensors in and results out; each tensor of a member is placed in the engine once.
Does not know: budgets, files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from builder.cact.layout import CODEBOOKS, GROUP
from builder.cact.reader import Container
from builder.family.budget.wanted import WantedChange
from builder.family.safetensors_file import Floats
from builder.runtime.host import Instance, packaged_module

_INPUT = struct.Struct("<10I2fI")  # struct sg_requantise_input
_RESULT = struct.Struct("<3df5I")  # struct sg_requantised
_OFFSET_BYTES = 4
"""Where an entry of the shift list says which tensor it is for."""


@dataclass(frozen=True)
class Point:
    """How codes are chosen: one point between size and faithfulness."""

    step: float
    """Rounding of the low-rank factors of the boosted change, in norms of a group of 128."""
    trade: float | None = None
    """What a bit costs, in variances of a weight; None: zero residual."""
    is_trial: bool = False
    """Zero residual: only the size matters, so the boost may be rough."""


@dataclass(frozen=True)
class Requantised:
    """One tensor's new bytes."""

    name: str
    blob: bytes
    shift: bytes
    """For the patch maker; empty where nothing of the change is left."""
    rank: int
    stays: bool
    """Whether a tensor without a shift is the base's, as in zero residual; else it is the plain export's."""


@dataclass(frozen=True)
class _Placed:
    change: WantedChange
    bits: int
    blob_bytes: int
    base: int
    p: int
    q: int
    blob: int
    shift: int


class Requantiser:
    """The tensors of one member, ready to be requantised again and again."""

    def __init__(self, base: Container, changes: Sequence[WantedChange], adapter_seed: int) -> None:
        self._engine = Instance(*packaged_module("maker.wasm"))
        self._seed = adapter_seed
        self._state = self._engine.reserve(self._engine.call("sg_requantise_size"))
        self._codebooks = self._engine.place(CODEBOOKS.tobytes())
        self._desk = self._engine.reserve(_INPUT.size + _RESULT.size)
        self._placed = [self._place(base, change) for change in changes]
        self._weights: list[int] = []

    def give_weights(self, weights: Iterator[Floats]) -> None:
        """The wanted rotated weights of every tensor, which a trade needs."""
        self._weights = [self._place_floats(values) for values in weights]

    @property
    def has_weights(self) -> bool:
        """Whether `give_weights` was called."""
        return len(self._weights) == len(self._placed)

    def run(self, point: Point) -> list[Requantised]:
        """All tensors at one point; the same bytes each time."""
        self._engine.call("sg_requantise_begin", self._state, self._seed)
        return [self._one(index, point) for index in range(len(self._placed))]

    def _place(self, base: Container, change: WantedChange) -> _Placed:
        record, blob = base.record(change.name), base.raw(change.name)
        rows, codes = len(change.p), change.q.shape[1]
        bound = self._engine.call("sg_requantise_shift_bound", rows, codes // GROUP)
        return _Placed(
            change,
            bits=record.bits,
            blob_bytes=len(blob),
            base=self._engine.place(blob),
            p=self._place_floats(change.p),
            q=self._place_floats(change.q),
            blob=self._engine.reserve(len(blob)),
            shift=self._engine.reserve(bound),
        )

    def _place_floats(self, values: Floats) -> int:
        return self._engine.place(np.ascontiguousarray(values, "<f4").tobytes())

    def _one(self, index: int, point: Point) -> Requantised:
        placed = self._placed[index]
        change = placed.change
        weights = 0 if point.trade is None else self._weights[index]
        pointers = (placed.base, self._codebooks, placed.p, placed.q, weights)
        rows, rank = change.p.shape
        shape = (rows, change.q.shape[1] // GROUP, placed.bits, change.columns, rank)
        numbers = (point.step, point.trade or 0.0, int(point.is_trial))
        self._engine.write(self._desk, _INPUT.pack(*pointers, *shape, *numbers))
        result = self._desk + _INPUT.size
        addresses = (self._state, self._desk, placed.blob, placed.shift, result)
        self._engine.check(change.name, "sg_requantise", *addresses)
        fields = _RESULT.unpack(self._engine.read(result, _RESULT.size))
        shift_bytes, settled_rank = fields[4:6]
        return Requantised(
            change.name,
            self._engine.read(placed.blob, placed.blob_bytes),
            self._engine.read(placed.shift, shift_bytes),
            settled_rank,
            stays=point.trade is None,
        )


def assemble(plain: Container, tensors: Sequence[Requantised]) -> tuple[bytes, bytes]:
    """The container with these tensors instead of its own, and the list of shifts for the patch maker."""
    data, shifts = bytearray(plain.data), bytearray()
    for tensor in tensors:
        if not tensor.shift and not tensor.stays:
            continue
        offset = plain.record(tensor.name).offset_bytes
        data[offset : offset + len(tensor.blob)] = tensor.blob
        if tensor.shift:
            shifts += tensor.shift[:_OFFSET_BYTES] + struct.pack("<I", offset)
            shifts += tensor.shift[2 * _OFFSET_BYTES :]
    return bytes(data), bytes(shifts)
