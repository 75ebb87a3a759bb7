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
    """The bytes of an engine and what the manifest says of them."""

    data: bytes
    sha256: str
    abi: int = ABI_VERSION


def read_engines(numerics: str) -> tuple[EngineFile, ...]:
    """What a site publishes: the engine that runs everywhere, then, for `fast`, the one with relaxed SIMD.

    That one has the same logits and takes less time in `fast` alone. Raises RefusedError (engine_missing,
    engine_mismatch).
    """
    names = ("engine.wasm", "engine_relaxed.wasm") if numerics == "fast" else ("engine.wasm",)
    return tuple(_engine(name) for name in names)


def maker_sha256() -> str:
    """Of the module that makes patches, which is not published. Raises as `read_engines` does."""
    return hashlib.sha256(_module("maker.wasm")).hexdigest()


def _engine(name: str) -> EngineFile:
    data = _module(name)
    return EngineFile(data, hashlib.sha256(data).hexdigest())


def _module(name: str) -> bytes:
    packaged_module(name)  # Refuses what is not a module of this interface version.
    return resources.files("builder.runtime").joinpath(name).read_bytes()
