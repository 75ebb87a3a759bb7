"""Exact patches between containers: make, apply, inspect. The codec itself is in the engine."""

from builder.delta.apply import apply_patch
from builder.delta.frame import PatchHeader, read_patch_header
from builder.delta.inspect import (
    PatchReport,
    SegmentReport,
    changed_code_counts,
    changed_code_share,
    inspect_patch,
)
from builder.delta.make import make_patch

__all__ = [
    "PatchHeader",
    "PatchReport",
    "SegmentReport",
    "apply_patch",
    "changed_code_counts",
    "changed_code_share",
    "inspect_patch",
    "make_patch",
    "read_patch_header",
]
