"""What an adapter does to the tensors of a container, in the domain of their codes.

Owns: `wanted_changes`: which tensors change by a product of two thin matrices, and that product rotated.
Does not know: how codes are chosen, patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from builder.cact.layout import GROUP, padded
from builder.cact.order import model_slots
from builder.cact.quantise import rotate
from builder.errors import FamilyError
from builder.family.adapter import Adapter
from builder.family.export import CheckpointExporter
from builder.family.safetensors_file import Floats

RANK_MAX = 32
"""Of the shift in a patch (docs/formats/patch.md)."""


@dataclass(frozen=True)
class WantedChange:
    """The change of one tensor: `p` (rows, rank) times `q` (rank, codes of a row), to rotated weights."""

    name: str
    columns: int
    p: Floats
    q: Floats


def wanted_changes(exporter: CheckpointExporter, adapter: Adapter) -> list[WantedChange]:
    """In file order; a tensor of another shape that the adapter changes is not among them.

    Raises `FamilyError` (bad_adapter) for a rank that no patch can hold.
    """
    parameters = exporter.parameters(adapter)
    changes = []
    for slot in model_slots(exporter.header):
        key = parameters.key(slot.name)
        is_kernel = slot.name.startswith("layers.") and slot.name.endswith("_proj")
        if not is_kernel or key not in adapter.pairs:
            continue
        layer = parameters.layers[int(slot.name.split(".")[1])]
        a, b = (matrix[layer] for matrix in adapter.pairs[key])
        if a.shape[1] > RANK_MAX:
            raise FamilyError(
                f"{adapter.path}: has rank {a.shape[1]}, must be at most {RANK_MAX} for a budget; train with "
                "a lower rank or export without one",
                code="bad_adapter",
            )
        p = np.float32(adapter.scale) * np.ascontiguousarray(b.T)
        changes.append(WantedChange(slot.name, a.shape[0], p, rotated(a.T)))
    return changes


def rotated(rows: Floats) -> Floats:
    """(rows, columns) to (rows, padded), as CQ codes are rotated."""
    width = padded(rows.shape[1])
    full = np.zeros((len(rows), width), np.float32)
    full[:, : rows.shape[1]] = rows
    return rotate(full.reshape(len(rows), width // GROUP, GROUP)).reshape(len(rows), width)
