"""Patches between two models, each applied again before anybody gets it.

Owns: what a patch is made from, so that the cache may answer; the proof. Knows nothing of: members, sites,
the patch format (builder/delta).
"""

from __future__ import annotations

from collections.abc import Callable

from builder.delta import apply_patch, changed_code_share, make_patch
from builder.errors import PatchError
from builder.publish.cache import Made
from builder.publish.canonical import Json
from builder.publish.steps import Steps, sources_sha256

CHANGED_CODES = "changed_codes"
"""A fact of each patch: the share of the target's codes that differ from the base's."""


class PatchMaker:
    """Makes patches with one effort; `modules_sha256` are the hashes of the modules that make and apply."""

    def __init__(self, steps: Steps, modules_sha256: list[str], effort: int) -> None:
        self._steps, self.effort = steps, effort
        self._code: Json = [sources_sha256("builder.delta"), *modules_sha256]

    def make(
        self,
        step: str,
        base_sha256: str,
        read_base: Callable[[], bytes],
        target: Made,
        *,
        adapter_seed: int = 0,
    ) -> Made:
        """The patch from a base to `target`; the base is read only if the cache does not know the patch.

        Raises ContainerError for what is no container, and whatever `read_base` raises.
        """
        ingredients: Json = {
            "step": "patch",
            "code": self._code,
            "base": base_sha256,
            "target": target.sha256,
            "effort": self.effort,
            "adapter_seed": adapter_seed,
        }

        def made() -> tuple[bytes, dict[str, float]]:
            base, wanted = read_base(), target.read()
            patch = make_patch(
                base,
                wanted,
                effort=self.effort,
                adapter_seed=adapter_seed,
                progress=lambda done, total: self._steps.tell(step, done / total),
            )
            if apply_patch(base, patch) != wanted:
                raise PatchError(f"{step}: the patch maker made one that does not give the model back")
            return patch, {CHANGED_CODES: changed_code_share(base, wanted)}

        return self._steps.once(step, ingredients, made, facts=(CHANGED_CODES,))
