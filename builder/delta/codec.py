"""The patch codec as it lives in `maker.wasm` and `engine.wasm`, called through wasmtime.

Owns: moving bytes in and out of the engine for maker and rebuilder, piece by piece.
Does not know: the patch format (docs/formats/patch.md); maker and rebuilder are in C. One engine instance
serves one call, so that nothing of one patch can reach another and memory is given back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from builder.delta.frame import PatchHeader
from builder.runtime.engine import Engine
from builder.runtime.host import Instance, packaged_module
from builder.runtime.status import DONE, NEED_BASE, NEED_PATCH

_OPTIONS = struct.Struct("<IIII")  # struct sg_patch_options
_IO = struct.Struct("<IIIIII")  # struct sg_rebuild_io
_EXPECT = struct.Struct("<32s32sQQ")  # struct sg_rebuild_expect

# Told while a patch is made, from the caller's thread: bytes of the target that are done, and all there are.
Progress = Callable[[int, int], None]


def make(
    base: bytes,
    target: bytes,
    *,
    effort: int,
    adapter_seed: int,
    shifts: bytes,
    progress: Progress,
) -> bytes:
    """A patch that turns `base` into `target`. Raises `ContainerError` if either is not a container."""
    engine = Instance(*packaged_module("maker.wasm"))
    options = engine.place(_OPTIONS.pack(effort, adapter_seed, engine.place(shifts), len(shifts)))
    sizes = len(base), len(target)
    capacity = engine.call("sg_patch_bound", *sizes)
    maker_bytes = engine.call("sg_patch_maker_size", *sizes)
    base_at, target_at = engine.place(base), engine.place(target)
    out, maker = engine.reserve(capacity), engine.reserve(maker_bytes)
    inputs = (base_at, sizes[0], target_at, sizes[1])
    engine.check("patch maker", "sg_patch_begin", maker, maker_bytes, options, *inputs, out, capacity)
    is_whole = False
    while not is_whole:
        is_whole = engine.check("patch maker", "sg_patch_step", maker) == DONE
        progress(engine.call("sg_patch_done", maker), len(target))
    return engine.read(out, engine.call("sg_patch_bytes", maker))


def rebuild(base: Iterable[bytes], patch: Iterable[bytes], expect: PatchHeader) -> bytes:
    """The target, from base and patch in pieces of any size; each is asked for when it is needed.

    `expect` says what base and target must be. Raises `PatchError` for anything that is not exact.
    """
    engine = Engine().instance()
    state = engine.reserve(engine.call("sg_rebuild_size"))
    target = engine.reserve(expect.target_bytes)
    hashes = bytes.fromhex(expect.base_sha256), bytes.fromhex(expect.target_sha256)
    wanted = engine.place(_EXPECT.pack(*hashes, expect.base_bytes, expect.target_bytes))
    inputs = {NEED_BASE: _Input(engine, base), NEED_PATCH: _Input(engine, patch)}
    io = engine.reserve(_IO.size)
    engine.check("patch", "sg_rebuild_begin", state, wanted, target)
    status = NEED_PATCH
    while status in inputs:
        if inputs[status].refill():
            status = _step(engine, state, io, inputs)
        else:
            status = engine.check("patch", "sg_rebuild_finish", state)
    if status == DONE and inputs[NEED_PATCH].refill():
        _step(engine, state, io, inputs)  # refuses the bytes that are left
    return engine.read(target, expect.target_bytes)


def _step(engine: Instance, state: int, io: int, inputs: dict[int, _Input]) -> int:
    base, patch = inputs[NEED_BASE], inputs[NEED_PATCH]
    engine.write(io, _IO.pack(base.address, base.left, 0, patch.address, patch.left, 0))
    status = engine.check("patch", "sg_rebuild_step", state, io)
    _, _, base_used, _, _, patch_used = _IO.unpack(engine.read(io, _IO.size))
    base.advance(base_used)
    patch.advance(patch_used)
    return status


class _Input:
    """The present piece of one input, in engine memory."""

    def __init__(self, engine: Instance, pieces: Iterable[bytes]) -> None:
        self._engine = engine
        self._pieces = iter(pieces)
        self._block, self._capacity = 0, 0
        self.address, self.left = 0, 0

    def advance(self, byte_count: int) -> None:
        self.address += byte_count
        self.left -= byte_count

    def refill(self) -> bool:
        """Whether there is anything left; takes the next piece where the last one is used up."""
        while not self.left:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            if len(piece) > self._capacity:
                self._block, self._capacity = self._engine.reserve(len(piece)), len(piece)
            self._engine.write(self._block, piece)
            self.address, self.left = self._block, len(piece)
        return True
