"""Looking into a patch without applying it: where its bytes go, and how many codes changed.

Owns: `inspect_patch`, `changed_code_counts`. Does not know: how payloads are coded (row_costs.py reads
what it needs); nothing here touches a target. Source: docs/formats/patch.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from builder.cact.layout import Kind
from builder.cact.reader import Container, read_container
from builder.delta.apply import require_base
from builder.delta.frame import SPEC, PatchHeader, Segment, read_patch_header, read_segments
from builder.delta.layout import SegmentKind
from builder.delta.row_costs import RowCosts
from builder.errors import PatchError, refusal

PARTS = ("q", "p", "norm", "code", "table", "literal", "frame")
"""Q (with its gains) and P are the side information of guided codes."""


@dataclass(frozen=True)
class SegmentReport:
    """One segment: the target range that it fills and what it takes in the patch, in bytes."""

    kind: SegmentKind
    coder: int
    target_offset: int
    target_bytes: int
    tensor: str | None
    """Canonical name of the tensor that a CQ segment fills, where the base is at hand."""
    rank: int = 0
    """Of the predicted shift; 0 for all but guided CQ segments."""
    q_bytes: int = 0
    p_bytes: int = 0
    norm_bytes: int = 0
    code_bytes: int = 0
    table_bytes: int = 0
    literal_bytes: int = 0
    frame_bytes: int = 0
    """Fields and sizes."""

    @property
    def patch_bytes(self) -> int:
        """All that the segment takes in the patch."""
        return sum(int(getattr(self, f"{part}_bytes")) for part in PARTS)


@dataclass(frozen=True)
class PatchReport:
    """A whole patch, segment by segment."""

    header: PatchHeader
    patch_bytes: int
    segments: tuple[SegmentReport, ...]

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of the patch by what they say; header and trailer are frame. They sum to `patch_bytes`."""
        parts = {part: sum(getattr(s, f"{part}_bytes") for s in self.segments) for part in PARTS}
        parts["frame"] += self.patch_bytes - sum(parts.values())
        return parts


def inspect_patch(patch: bytes | memoryview, base: bytes | Container | None = None) -> PatchReport:
    """The patch's segments with their costs; with the base at hand, CQ segments carry a tensor's name.

    Raises `PatchError` if the base is another, or header, frame or the rows of guided segments are broken.
    No code and no literal is decoded: only applying proves a patch.
    """
    header = read_patch_header(patch)
    names: dict[int, str] = {}
    if base is not None:
        container = _container(base)
        require_base(header, container.data)
        names = {record.offset_bytes: record.name for record in container.records}
    costs = RowCosts()
    segments = tuple(_report(segment, names, costs) for segment in read_segments(patch, header))
    return PatchReport(header, len(patch), segments)


def _report(segment: Segment, names: dict[int, str], rows: RowCosts) -> SegmentReport:
    payload_bytes = sum(len(payload) for payload in segment.payloads)
    costs = {"frame_bytes": segment.field_bytes + 4 * len(segment.payloads)}
    tensor = None
    if segment.kind is SegmentKind.CQ:
        blocks = segment.payloads[1:] if segment.is_guided else segment.payloads
        row_bytes = sum(_row_bytes(block) for block in blocks)
        costs["q_bytes"] = payload_bytes - sum(len(block) for block in blocks)
        costs["p_bytes"] = rows.p_bytes(segment) if segment.is_guided else 0
        costs["norm_bytes"] = row_bytes - costs["p_bytes"]
        costs["frame_bytes"] += 4 * len(blocks)
        costs["code_bytes"] = sum(len(block) for block in blocks) - row_bytes - 4 * len(blocks)
        tensor = names.get(segment.base_offset)
    elif segment.kind is SegmentKind.TABLE:
        costs["table_bytes"] = payload_bytes
    else:
        costs["literal_bytes"] = payload_bytes
    return SegmentReport(
        segment.kind,
        segment.coder,
        segment.target_offset,
        segment.target_bytes,
        tensor,
        segment.rank,
        **costs,
    )


def _row_bytes(block: memoryview) -> int:
    """The size of a block's binary stream, which stands before it."""
    size = int.from_bytes(block[:4], "little")
    if size > len(block) - 4:
        message = refusal(
            "patch", "block.range_bytes", found=size, allowed=f"at most {len(block) - 4}", spec=SPEC
        )
        raise PatchError(message, code="patch_corrupt")
    return size


def changed_code_counts(base: bytes | Container, target: bytes | Container) -> dict[str, tuple[int, int]]:
    """How many codes of each CQ tensor differ from the base's of the same name, and of how many.

    A tensor that the base lacks, or has in another shape, counts as changed altogether.
    """
    old, new = _container(base), _container(target)
    counts = {}
    for record in new.records:
        if record.kind is not Kind.CQ:
            continue
        codes = new.codes(record.name)
        has_partner = record.name in old and old.record(record.name).kind is Kind.CQ
        before = old.codes(record.name) if has_partner else None
        is_alike = before is not None and before.shape == codes.shape
        changed = int(np.count_nonzero(before != codes)) if is_alike else codes.size
        counts[record.name] = changed, codes.size
    return counts


def changed_code_share(base: bytes | Container, target: bytes | Container) -> float:
    """Share of the target's codes that differ, as `changed_code_counts` has it; 0 to 1."""
    counts = changed_code_counts(base, target).values()
    total = sum(size for _, size in counts)
    return sum(changed for changed, _ in counts) / total if total else 0.0


def _container(source: bytes | Container) -> Container:
    return source if isinstance(source, Container) else read_container(source)
