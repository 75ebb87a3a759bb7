"""The depth ladder: which blocks of a checkpoint a shallower model keeps.

Owns: the choice of blocks; a checkpoint may carry an order of its own. Does not know: tensors.
Source: `ladder_layer_indices` of cactus-needle 3.2.8.
"""

from __future__ import annotations

from builder.cact.ladder import bisection_order
from builder.errors import FamilyError
from builder.family.checkpoint import Checkpoint


def kept_layers(checkpoint: Checkpoint, depth: int | None) -> tuple[int, ...]:
    """The blocks of the model with `depth` blocks (None: all), ascending.

    Raises `FamilyError` (bad_depth, bad_checkpoint).
    """
    count = checkpoint.config.num_layers
    if depth is None or depth == count:
        return tuple(range(count))
    if not 2 <= depth < count:
        raise FamilyError(
            f"{checkpoint.path}: layers is {depth}, must be 2 to the checkpoint's {count}",
            code="bad_depth",
        )
    order = checkpoint.config.ladder_order or bisection_order(count)
    if sorted(order) != list(range(count)):
        raise FamilyError(
            f"{checkpoint.path}: config.ladder_order is {list(order)}, must hold each of the {count} once",
            code="bad_checkpoint",
        )
    return tuple(sorted(order[:depth]))
