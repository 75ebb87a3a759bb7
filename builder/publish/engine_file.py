"""The built WebAssembly modules as files.

Owns: their bytes and hashes; which of them is published. Knows nothing of: what they do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from builder.runtime.host import ABI_VERSION, packaged_module


@dataclass(frozen=True)
class EngineFile:
    """The bytes of `engine.wasm` and what the manifest says of them."""

    data: bytes
    sha256: str
    abi: int


def read_engine() -> EngineFile:
    """The engine of this package. Raises RefusedError (engine_missing, engine_mismatch)."""
    data = _module("engine.wasm")
    return EngineFile(data, hashlib.sha256(data).hexdigest(), ABI_VERSION)


def maker_sha256() -> str:
    """Of the module that makes patches, which is not published. Raises as `read_engine` does."""
    return hashlib.sha256(_module("maker.wasm")).hexdigest()


def _module(name: str) -> bytes:
    packaged_module(name)  # Refuses what is not a module of this interface version.
    return resources.files("builder.runtime").joinpath(name).read_bytes()
