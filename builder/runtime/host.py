"""One instance of `engine.wasm` or `maker.wasm` in wasmtime: calls, memory, errors.

Owns: compiling each packaged module once, the little-endian layout of the engine's structs, and turning a
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

from builder.errors import RefusedError, SessionError, UsageError, plain_name, refusal
from builder.runtime.status import DONE, STATUS_CODES, Failure

ABI_VERSION = 2
WORD_MAX = 2**32 - 1
"""The largest u32: sizes and addresses of a 32-bit memory keep to it."""
_ERROR = struct.Struct("<IIQQQ")
_WORD = struct.Struct("<I")
_FIELD_NAME_BYTES_MAX = 200
"""`SG_PATH_BYTES_MAX`: a keyword's path; names of fields are shorter."""
_STARTING_FUNCTIONS = {"sg_abi_version": ([], ["i32"]), "sg_reserve": (["i32"], ["i32"])}
_START_FUEL = 1_000_000
"""Instructions, about; the engine takes two, having nothing to start."""


@functools.cache
def packaged_module(name: str = "engine.wasm") -> tuple[wasmtime.Engine, wasmtime.Module]:
    """A module of the package, compiled. Raises `RefusedError` (engine_missing) if it was not built.

    `engine.wasm` is what visitors run, `maker.wasm` makes patches.
    """
    path = resources.files("builder.runtime").joinpath(name)
    if not path.is_file():
        raise RefusedError(f"{name}: was not built; run: python engine/build.py", code="engine_missing")
    return _compiled(path.read_bytes())


# wasmtime's objects complain when they outlive the library's own teardown.
atexit.register(packaged_module.cache_clear)


def compiled(wasm: bytes) -> tuple[wasmtime.Engine, wasmtime.Module]:
    """A module of the engine's interface version. Raises `RefusedError` (engine_mismatch) for any other.

    Bytes other than the package's own are tried out first with a bound on what they may run.
    """
    path = resources.files("builder.runtime").joinpath("engine.wasm")
    if path.is_file() and path.read_bytes() == wasm:
        return packaged_module()
    _try_out(wasm)
    return _compiled(wasm)


def _compiled(wasm: bytes) -> tuple[wasmtime.Engine, wasmtime.Module]:
    engine = wasmtime.Engine()
    module = _module(engine, wasm)
    version = Instance(engine, module).call("sg_abi_version")
    if version != ABI_VERSION:
        raise _mismatch(f"has interface version {version}, must have {ABI_VERSION}")
    return engine, module


def _module(engine: wasmtime.Engine, wasm: bytes) -> wasmtime.Module:
    """A module that asks for nothing and has a memory and the functions that `Instance` starts with."""
    try:
        module = wasmtime.Module(engine, wasm)
    except wasmtime.WasmtimeError as error:
        raise _mismatch(f"is not WebAssembly: {str(error).splitlines()[0]}") from None
    if module.imports:
        raise _mismatch("imports something, must import nothing")
    exports = {export.name: export.type for export in module.exports}
    memory = exports.get("memory")
    if not isinstance(memory, wasmtime.MemoryType) or memory.is_64:
        raise _mismatch("exports no 32-bit memory")
    for name, signature in _STARTING_FUNCTIONS.items():
        found = exports.get(name)
        if not isinstance(found, wasmtime.FuncType) or _signature(found) != signature:
            raise _mismatch(f"exports no {name} of the engine's type")
    return module


def _signature(function: wasmtime.FuncType) -> tuple[list[str], list[str]]:
    return [str(kind) for kind in function.params], [str(kind) for kind in function.results]


def _try_out(wasm: bytes) -> None:
    """Start the module, ask for its version and for memory, none of which may take long."""
    config = wasmtime.Config()
    config.consume_fuel = True
    config.cranelift_opt_level = "none"
    engine = wasmtime.Engine(config)
    module = _module(engine, wasm)
    store = wasmtime.Store(engine)
    store.set_fuel(_START_FUEL)
    try:
        exports = wasmtime.Instance(store, module, []).exports(store)
        cast(wasmtime.Func, exports["sg_abi_version"])(store)
        cast(wasmtime.Func, exports["sg_reserve"])(store, _ERROR.size)
    except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
        raise _mismatch(f"cannot be started: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(error).splitlines()[-1].strip()


def _mismatch(what: str) -> RefusedError:
    return RefusedError(f"engine.wasm: {what}", code="engine_mismatch")


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
        """An export that cannot fail; an i32 as the unsigned number that it is in C, 0 for nothing.

        Raises `SessionError` (worker_lost) if it stops, `RefusedError` (engine_mismatch) if it is not there.
        """
        function = self._functions.get(name)
        if function is None:
            raise _mismatch(f"exports no {name}")
        try:
            result = int(function(self._store, *arguments) or 0)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise SessionError(f"engine: {name} stopped: {_reason(error)}", code="worker_lost") from None
        return result & WORD_MAX if result < 0 else result  # wasmtime takes every i32 for a signed one

    def check(self, subject: str, name: str, *arguments: int | float) -> int:
        """An export that returns a status and takes `struct sg_error` last. Raises what the status means."""
        status = self.call(name, *arguments, self._error)
        if status > DONE:
            raise self.failure().exception(subject)
        return status

    def failure(self) -> Failure:
        """What the last failed call said."""
        status, field, offset, found, allowed = _ERROR.unpack(self.read(self._error, _ERROR.size))
        name = self.read(field, max(0, min(_FIELD_NAME_BYTES_MAX, self.memory_bytes - field))).split(b"\0")[0]
        if status <= DONE or status not in STATUS_CODES:
            raise _lost(f"gave the unknown status {status}")
        return Failure(status, plain_name(name.decode("ascii", "replace")), offset, found, allowed)

    def reserve(self, byte_count: int) -> int:
        """Address of fresh zeroed memory that stays for good.

        Raises `RefusedError` (out_of_memory), `UsageError` (bad_argument) for a negative number.
        """
        if byte_count < 0:
            sentence = refusal("engine", "byte_count", found=byte_count, allowed="0 or more")
            raise UsageError(sentence, code="bad_argument")
        address = self.call("sg_reserve", max(byte_count, 1)) if byte_count <= WORD_MAX else 0
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
        self._require_inside(address, len(data))
        self._memory.write(self._store, data if isinstance(data, bytearray) else bytes(data), address)

    def read(self, address: int, byte_count: int) -> bytes:
        """A copy of the engine's memory."""
        self._require_inside(address, byte_count)
        return bytes(self._memory.read(self._store, address, address + byte_count))

    def word(self, address: int) -> int:
        """The u32 at `address`."""
        return int(_WORD.unpack(self.read(address, _WORD.size))[0])

    def _require_inside(self, address: int, byte_count: int) -> None:
        """Addresses come from the engine, and a site may bring its own."""
        if not 0 <= address <= self.memory_bytes - byte_count:
            raise _lost(f"gave the address {address} for {byte_count} bytes of its {self.memory_bytes}")


def _lost(what: str) -> SessionError:
    return SessionError(f"engine: {what}", code="worker_lost")
