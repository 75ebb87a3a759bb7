"""`.safetensors` files as f32 arrays and metadata.

Owns: reading, and the sentences for files that are not what they should be. Does not know: what tensors mean.
Half-precision values are widened exactly, so everything after this is float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from builder.errors import FamilyError, plain_name
from builder.files import read_regular

Floats = npt.NDArray[np.float32]

_NUMPY_TYPES = {"F32": "<f4", "F16": "<f2"}


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, Floats]]:
    """(metadata, tensors by name). Raises `FamilyError` (as `read_regular`, and bad_safetensors)."""
    if path.suffix != ".safetensors":
        raise FamilyError(
            f"{path}: is not a .safetensors file; pickled files can run code and are never opened",
            code="bad_safetensors",
        )
    data = read_regular(path, error=FamilyError)
    try:
        entries: list[tuple[str, dict[str, Any]]] = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        reason = plain_name(str(error))  # It quotes the file.
        raise FamilyError(f"{path}: is not a safetensors file: {reason}", code="bad_safetensors") from None
    # `deserialize` has checked the header, so its length and JSON are sound.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}), {name: _floats(path, name, entry) for name, entry in entries}


def _floats(path: Path, name: str, entry: dict[str, Any]) -> Floats:
    dtype, data = entry["dtype"], entry["data"]
    values: Floats
    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype in _NUMPY_TYPES:
        values = np.frombuffer(data, _NUMPY_TYPES[dtype]).astype(np.float32)
    else:
        raise FamilyError(
            f"{path}: tensor {plain_name(name)} has type {dtype}, must be F32, F16 or BF16",
            code="bad_safetensors",
        )
    try:
        return values.reshape(entry["shape"])
    except (ValueError, OverflowError):  # More axes, or a longer one beside an empty one, than numpy has.
        shape = plain_name(str(entry["shape"]))
        sentence = f"{path}: tensor {plain_name(name)} has the shape {shape}, which no array has"
        raise FamilyError(sentence, code="bad_safetensors") from None
