"""The engine as a published file.

Owns: the bytes of the built `engine.wasm` and their hash. Knows nothing of: what the engine does.
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
    packaged_module()  # Refuses what is not an engine of this interface version.
    data = resources.files("builder.runtime").joinpath("engine.wasm").read_bytes()
    return EngineFile(data, hashlib.sha256(data).hexdigest(), ABI_VERSION)
