"""The engine as a published file.

Owns: finding the built `engine.wasm` and asking it for its interface version. Knows nothing of: what it does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

import wasmtime

from builder.errors import RefusedError, refusal


@dataclass(frozen=True)
class EngineFile:
    """The bytes of `engine.wasm` and what the manifest says of them."""

    data: bytes
    sha256: str
    abi: int


def read_engine() -> EngineFile:
    """The engine of this package. Raises RefusedError if it was never built."""
    path = resources.files("builder.runtime").joinpath("engine.wasm")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        sentence = refusal(
            path, "file", found="missing", allowed="built", next_step="run: python engine/build.py"
        )
        raise RefusedError(sentence, code="engine_missing") from None
    store = wasmtime.Store()
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, data), []).exports(store)
    version = exports["sg_abi_version"]
    assert isinstance(version, wasmtime.Func)
    return EngineFile(data, hashlib.sha256(data).hexdigest(), int(version(store)))
