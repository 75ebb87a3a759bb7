"""The depth ladder of a container: a shallower model out of the same file.

Owns: the order in which layers join the ladder, and `rung`, which copies codes and norms as they stand.
Does not know: checkpoints (builder/family/ladder.py reads the order that one may carry). A container does not
say whether it is itself a rung; the order is then that of a whole model with its number of layers.
Source: `ladder_layer_indices` and `ladder_slice` of cactus-needle 3.2.8.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from builder.cact.header import Header
from builder.cact.layout import Kind
from builder.cact.reader import Container, read_container
from builder.cact.writer import Blob, blobs_of, cq_blob, half_blob, write_container
from builder.errors import UsageError, refusal

DEPTH_MIN = 2
HEAD_ROW_AXES = {"probes": 0, "gain": 0, "row_bias": 1}
"""Fields of a head that have a row for the embedding and one for each layer, and on which axis."""


def bisection_order(count: int) -> tuple[int, ...]:
    """Both ends, then over and over the middle of the widest gap (leftmost on a tie)."""
    order = [0, count - 1] if count > 1 else [0]
    while len(order) < count:
        ends = sorted(order)
        gap, left = max((right - left, -left) for left, right in itertools.pairwise(ends))
        order.append(-left + gap // 2)
    return tuple(order)


def rung(container: Container, depth: int | None) -> Container:
    """The model that keeps `depth` layers; None or all layers: the container itself.

    Raises `UsageError` (bad_depth) for a rung that the container does not have.
    """
    header = container.header
    if depth is None or depth == header.layer_count:
        return container
    if header.generation == 2 or not DEPTH_MIN <= depth < header.layer_count:
        least = header.layer_count if header.generation == 2 else DEPTH_MIN
        allowed = f"{least} to {header.layer_count} layers"
        raise UsageError(refusal(container.subject, "depth", found=depth, allowed=allowed), code="bad_depth")
    kept = sorted(bisection_order(header.layer_count)[:depth])
    blobs = [
        blob
        for record, stored in zip(container.records, blobs_of(container), strict=True)
        if (blob := _blob(container, record.name, stored, kept)) is not None
    ]
    made = read_container(write_container(_header(header, kept), blobs, container.codebooks))
    made.subject = container.subject
    return made


def _header(header: Header, kept: Sequence[int]) -> Header:
    return dataclasses.replace(
        header,
        layer_count=len(kept),
        global_mask=sum(1 << place for place, layer in enumerate(kept) if header.global_mask >> layer & 1),
        sites=tuple(place for place, layer in enumerate(kept) if layer in header.sites),
    )


def _blob(container: Container, name: str, stored: Blob, kept: Sequence[int]) -> Blob | None:
    """The tensor as the rung has it; None where it has none."""
    part, _, rest = name.partition(".")
    if part == "layers":
        return stored if int(rest.split(".")[0]) in kept else None
    if part == "engrams":
        return stored if container.header.sites[int(rest.split(".")[0])] in kept else None
    if part.startswith("mhc_"):
        return _take(container, name, stored, kept, 0, container.header.layer_count)
    field = rest.rpartition(".")[2]
    if part == "heads" and field in HEAD_ROW_AXES:
        rows = (0, *(layer + 1 for layer in kept))
        return _take(container, name, stored, rows, HEAD_ROW_AXES[field], container.header.layer_count + 1)
    return stored


def _take(
    container: Container, name: str, stored: Blob, rows: Sequence[int], axis: int, row_count: int
) -> Blob:
    """The tensor with these of its `row_count` rows; a CQ tensor has several rows of codes for each."""
    if stored.kind is not Kind.CQ:
        return half_blob(np.take(container.tensor(name), rows, axis))
    each = np.arange(stored.shape[0]).reshape(row_count, -1)[list(rows)].ravel()
    return cq_blob(container.codes(name)[each], container.norms(name)[each], stored.bits, stored.shape[1])
