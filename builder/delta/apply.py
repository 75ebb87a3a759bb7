"""Applying a patch. The rebuilder itself is in the engine (`engine/src/rebuild.c`)."""

from __future__ import annotations

import hashlib

from builder.delta import codec
from builder.delta.frame import SPEC, PatchHeader, read_patch_header
from builder.errors import PatchError, refusal


def apply_patch(base: bytes, patch: bytes) -> bytes:
    """The target, proved by the SHA-256 in the patch's header.

    Raises `PatchError` (codes patch_*) if the patch is broken or for another base; then nothing of the target
    comes out.
    """
    header = read_patch_header(patch)
    require_base(header, base)
    return codec.rebuild([base], [patch], header)


def require_base(header: PatchHeader, base: bytes | memoryview) -> None:
    """Raise `PatchError` (patch_wrong_base) if the patch was made against another base."""
    found = hashlib.sha256(base).hexdigest()
    if (found, len(base)) != (header.base_sha256, header.base_bytes):
        message = refusal(
            "patch",
            "header.base_sha256",
            found=f"{header.base_sha256[:12]} ({header.base_bytes} bytes)",
            allowed=f"that of the base, {found[:12]} ({len(base)} bytes)",
            offset=32,
            spec=SPEC,
        )
        raise PatchError(message, code="patch_wrong_base")
