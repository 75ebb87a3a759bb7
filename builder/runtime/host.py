"""One instance of `engine.wasm` in wasmtime: calls, memory, errors.

Owns: compiling the packaged module once, the little-endian layout of the engine's structs, and turning a
status or a trap into an exception of builder/errors.py. Source: `engine/include/saguaro.h`, docs/engine.md.
Knows nothing of: what the calls do. An instance is not thread-safe.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import struct
from collections.abc import Iterator
from importlib import resources
from typing import cast

import wasmtime

from builder.errors import RefusedError, SessionError
from builder.runtime.status import DONE, Failure

ABI_VERSION = 1
_ERROR = struct.Struct("<IIQQQ")
_WORD = struct.Struct("<I")
_FIELD_NAME_BYTES_MAX = 64
_MEMORY_WORD = 0xFFFFFFFF


@functools.cache
def packaged_module() -> tuple[wasmtime.Engine, wasmtime.Module]:
    """The package's `engine.wasm`, compiled. Raises `RefusedError` (engine_missing) if it was not built."""
    path = resources.files("builder.runtime").joinpath("engine.wasm")
    if not path.is_file():
        raise RefusedError("engine.wasm: was not built; run: python engine/build.py", code="engine_missing")
    return compiled(path.read_bytes())


# wasmtime's objects complain when they outlive the library's own teardown.
atexit.register(packaged_module.cache_clear)


def compiled(wasm: bytes) -> tuple[wasmtime.Engine, wasmtime.Module]:
    """A module of the engine's interface version. Raises `RefusedError` (engine_mismatch) for any other."""
    engine = wasmtime.Engine()
    try:
        module = wasmtime.Module(engine, wasm)
    except wasmtime.WasmtimeError as error:
        raise RefusedError(f"engine.wasm: is not WebAssembly: {error}", code="engine_mismatch") from error
    version = Instance(engine, module).call("sg_abi_version")
    if version != ABI_VERSION:
        raise RefusedError(
            f"engine.wasm: has interface version {version}, must have {ABI_VERSION}", code="engine_mismatch"
        )
    return engine, module


class Instance:
    """A fresh engine with its own memory, which grows and is given back only as a whole."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self._store = wasmtime.Store(engine)
        exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._functions = {
            name: item for name, item in dict(exports).items() if isinstance(item, wasmtime.Func)
        }
        self._memory = cast(wasmtime.Memory, exports["memory"])
        self._free: list[tuple[int, int]] = []
        self._error = self.reserve(_ERROR.size)

    @property
    def memory_bytes(self) -> int:
        """Size of the instance's memory."""
        return self._memory.data_len(self._store)

    def call(self, name: str, *arguments: int | float) -> int:
        """An export that cannot fail; 0 for one that returns nothing."""
        try:
            return int(self._functions[name](self._store, *arguments) or 0)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise SessionError(f"engine: {name} stopped: {reason}", code="worker_lost") from None

    def check(self, subject: str, name: str, *arguments: int | float) -> int:
        """An export that returns a status and takes `struct sg_error` last. Raises what the status means."""
        status = self.call(name, *arguments, self._error)
        if status > DONE:
            raise self.failure().exception(subject)
        return status

    def failure(self) -> Failure:
        """What the last failed call said."""
        status, field, offset, found, allowed = _ERROR.unpack(self.read(self._error, _ERROR.size))
        name = self.read(field, min(_FIELD_NAME_BYTES_MAX, self.memory_bytes - field)).split(b"\0")[0]
        return Failure(status, name.decode("ascii"), offset, found, allowed)

    def reserve(self, byte_count: int) -> int:
        """Address of fresh zeroed memory that stays for good. Raises `RefusedError` (out_of_memory)."""
        address = self.call("sg_reserve", max(byte_count, 1)) & _MEMORY_WORD if byte_count < 1 << 32 else 0
        if not address:
            raise RefusedError(f"engine: has no room for {byte_count} bytes more", code="out_of_memory")
        return address

    def take(self, byte_count: int) -> tuple[int, int]:
        """A block (address, size) of at least `byte_count` bytes, perhaps used before; `give` it back."""
        fitting = [block for block in self._free if block[1] >= byte_count]
        if not fitting:
            return self.reserve(byte_count), byte_count
        block = min(fitting, key=lambda free: free[1])
        self._free.remove(block)
        return block

    def give(self, block: tuple[int, int]) -> None:
        """Return a block that `take` gave."""
        self._free.append(block)

    @contextlib.contextmanager
    def borrowed(self, byte_count: int) -> Iterator[int]:
        """Address of a block for the length of a `with` statement."""
        block = self.take(byte_count)
        try:
            yield block[0]
        finally:
            self.give(block)

    def place(self, data: bytes | bytearray | memoryview) -> int:
        """Address of a copy of `data` that stays for good."""
        address = self.reserve(len(data))
        self.write(address, data)
        return address

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy `data` into the engine's memory."""
        self._memory.write(self._store, data if isinstance(data, bytearray) else bytes(data), address)

    def read(self, address: int, byte_count: int) -> bytes:
        """A copy of the engine's memory."""
        return bytes(self._memory.read(self._store, address, address + byte_count))

    def word(self, address: int) -> int:
        """The u32 at `address`."""
        return int(_WORD.unpack(self.read(address, _WORD.size))[0])
