"""Making a patch. The maker itself is in the engine (`engine/src/patch_make.c`)."""

from __future__ import annotations

from builder.delta import codec


def make_patch(base: bytes, target: bytes) -> bytes:
    """A patch with which `apply_patch` turns `base` into `target`; same inputs, same bytes.

    Any two containers will do. The patch is never larger than the target plus a small frame; whether it is
    worth having is the caller's to say. Raises `ContainerError` if either is not a container.
    """
    return codec.make(base, target)
