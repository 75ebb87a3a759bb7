"""Applying a patch. The rebuilder itself is in the engine (`engine/src/rebuild.c`)."""

from __future__ import annotations

from builder.delta import codec
from builder.delta.frame import read_patch_header


def apply_patch(base: bytes, patch: bytes) -> bytes:
    """The target, proved by the SHA-256 in the patch's header.

    Raises `PatchError` (codes patch_*) if the patch is broken or for another base; then nothing of the target
    comes out.
    """
    header = read_patch_header(patch)
    sha256 = bytes.fromhex(header.target_sha256)
    return codec.rebuild(base, patch, target_bytes=header.target_bytes, target_sha256=sha256)
