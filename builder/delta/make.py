"""Making a patch. The maker itself is in the engine (`engine/src/patch_make.c`)."""

from __future__ import annotations

from builder.delta import codec
from builder.errors import UsageError

EFFORT_MAX = 9
DEFAULT_EFFORT = 3
SEED_MAX = 2**32 - 1


def make_patch(
    base: bytes,
    target: bytes,
    *,
    effort: int = DEFAULT_EFFORT,
    adapter_seed: int = 0,
    shifts: bytes = b"",
    progress: codec.Progress = lambda done, total: None,
) -> bytes:
    """A patch with which `apply_patch` turns `base` into `target`; same inputs, same bytes.

    Any two containers will do. The patch is never larger than the target plus a small frame; whether it is
    worth having is the caller's to say. `effort` is 0 (quick, no guided coding) to 9. `adapter_seed` is the
    seed that `needle finetune` was given: if the LoRA adapter started from it, the patch names it and gets
    smaller; if not, nothing is lost. `shifts` are low-rank shifts that are known beforehand, as a budgeted
    export hands them over (builder/family/budget): the maker looks for none there. `progress` is told after
    each part. Raises `ContainerError` if either is not a container, `UsageError` for the numbers.
    """
    if not 0 <= effort <= EFFORT_MAX:
        raise UsageError(f"effort: is {effort}, must be 0 to {EFFORT_MAX}")
    if not 0 <= adapter_seed <= SEED_MAX:
        raise UsageError(f"adapter seed: is {adapter_seed}, must be 0 to {SEED_MAX}")
    return codec.make(
        base, target, effort=effort, adapter_seed=adapter_seed, shifts=shifts, progress=progress
    )
