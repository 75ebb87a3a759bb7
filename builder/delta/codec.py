"""The patch codec as it lives in `engine.wasm`, called through wasmtime.

Owns: moving bytes in and out of the engine, and turning its status into `PatchError` or `ContainerError`.
Does not know: the patch format (docs/formats/patch.md); maker and rebuilder are in C. One engine instance
serves one call, so that nothing of one patch can reach another and memory is given back.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from importlib import resources

import wasmtime

from builder.delta.frame import PatchHeader
from builder.errors import ContainerError, PatchError, RefusedError

NEED_BASE, NEED_PATCH, DONE = 1, 2, 3
_ERROR = struct.Struct("<IIQQQ")  # struct sg_error: status, field, offset, found, allowed
_IO = struct.Struct("<IIIIII")  # struct sg_rebuild_io
_EXPECT = struct.Struct("<32s32sQQ")  # struct sg_rebuild_expect
_STATUS_NAMES = {
    **{10: "bad_argument", 11: "out_of_memory", 12: "buffer_too_small"},
    **{100: "cact_truncated", 101: "cact_bad_tag", 102: "cact_bad_header", 103: "cact_bad_codebook"},
    **{104: "cact_bad_record", 105: "cact_bad_offset", 106: "cact_bad_shape", 107: "cact_bad_padding"},
    **{108: "cact_trailing_bytes", 111: "cact_unsupported", 200: "patch_truncated", 201: "patch_bad_magic"},
    **{202: "patch_bad_version", 203: "patch_wrong_base", 204: "patch_wrong_target", 205: "patch_bad_header"},
    **{206: "patch_bad_segment", 207: "patch_bad_coder", 208: "patch_bad_table", 209: "patch_corrupt"},
    **{210: "patch_trailing_bytes", 211: "patch_hash_mismatch", 302: "bad_state"},
}


@functools.cache
def _compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    engine = wasmtime.Engine()
    return engine, wasmtime.Module(
        engine, resources.files("builder.runtime").joinpath("engine.wasm").read_bytes()
    )


class _Instance:
    """One fresh engine; blocks are taken from it and never given back."""

    def __init__(self) -> None:
        engine, module = _compiled()
        self._store = wasmtime.Store(engine)
        self._exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        memory = self._exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self._memory = memory
        self.error = self.reserve(_ERROR.size)

    def call(self, name: str, *arguments: int) -> int:
        function = self._exports[name]
        assert isinstance(function, wasmtime.Func)
        return int(function(self._store, *arguments) or 0)

    def reserve(self, byte_count: int) -> int:
        address = self.call("sg_reserve", max(byte_count, 1)) & 0xFFFFFFFF
        if not address:
            raise RefusedError(f"engine: has no room for {byte_count} bytes more", code="out_of_memory")
        return address

    def place(self, data: bytes | bytearray) -> int:
        address = self.reserve(len(data))
        self.write(address, data)
        return address

    def write(self, address: int, data: bytes | bytearray) -> None:
        self._memory.write(self._store, data, address)

    def read(self, address: int, byte_count: int) -> bytes:
        return bytes(self._memory.read(self._store, address, address + byte_count))

    def refuse(self, subject: str) -> RefusedError:
        """The error that the engine has just described."""
        status, field_at, offset, found, allowed = _ERROR.unpack(self.read(self.error, _ERROR.size))
        field = self.read(field_at, 64).split(b"\0")[0].decode("ascii")
        code = _STATUS_NAMES[status]
        kind = ContainerError if code.startswith("cact_") else PatchError
        words = code.partition("_")[2].replace("_", " ")
        detail = f", is {found}, must be {allowed}" if found or allowed else ""
        return kind(f"{subject}: {words}: {field} at byte {offset}{detail}", code=code)


def make(base: bytes, target: bytes) -> bytes:
    """A patch that turns `base` into `target`. Raises `ContainerError` if either is not a container."""
    engine = _Instance()
    sizes = len(base), len(target)
    capacity = engine.call("sg_patch_bound", *sizes)
    scratch_bytes = engine.call("sg_patch_scratch_size", *sizes)
    base_at, target_at = engine.place(base), engine.place(target)
    out, scratch, used = engine.reserve(capacity), engine.reserve(scratch_bytes), engine.reserve(4)
    inputs = (base_at, sizes[0], target_at, sizes[1])
    if engine.call("sg_patch_make", *inputs, out, capacity, used, scratch, scratch_bytes, engine.error):
        raise engine.refuse("patch maker")
    return engine.read(out, int.from_bytes(engine.read(used, 4), "little"))


def rebuild(base: Iterable[bytes], patch: Iterable[bytes], expect: PatchHeader) -> bytes:
    """The target, from base and patch in pieces of any size; each is asked for when it is needed.

    `expect` says what base and target must be. Raises `PatchError` for anything that is not exact.
    """
    engine = _Instance()
    state = engine.reserve(engine.call("sg_rebuild_size"))
    target = engine.reserve(expect.target_bytes)
    hashes = bytes.fromhex(expect.base_sha256), bytes.fromhex(expect.target_sha256)
    wanted = engine.place(_EXPECT.pack(*hashes, expect.base_bytes, expect.target_bytes))
    inputs = {NEED_BASE: _Input(engine, base), NEED_PATCH: _Input(engine, patch)}
    io = engine.reserve(_IO.size)
    status = engine.call("sg_rebuild_begin", state, wanted, target, engine.error) or NEED_PATCH
    while status in inputs:
        if not inputs[status].refill():
            status = engine.call("sg_rebuild_finish", state, engine.error)
            break
        status = _step(engine, state, io, inputs)
    if status == DONE and inputs[NEED_PATCH].refill():
        _step(engine, state, io, inputs)
        raise engine.refuse("patch")
    if status != DONE:
        raise engine.refuse("patch")
    return engine.read(target, expect.target_bytes)


def _step(engine: _Instance, state: int, io: int, inputs: dict[int, _Input]) -> int:
    base, patch = inputs[NEED_BASE], inputs[NEED_PATCH]
    engine.write(io, _IO.pack(base.address, base.left, 0, patch.address, patch.left, 0))
    status = engine.call("sg_rebuild_step", state, io, engine.error)
    _, _, base_used, _, _, patch_used = _IO.unpack(engine.read(io, _IO.size))
    base.advance(base_used)
    patch.advance(patch_used)
    return status


class _Input:
    """The present piece of one input, in engine memory."""

    def __init__(self, engine: _Instance, pieces: Iterable[bytes]) -> None:
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
