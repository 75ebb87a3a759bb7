"""Members whose family file sets a budget: made once with their patch, told apart in the manifest.

Owns: what such a member is made from, so that the cache may answer, and taking it apart again.
Knows nothing of: how a budget is met (builder/family/budget), sites. Source: docs/budget.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from builder.delta import apply_patch, changed_code_share
from builder.errors import PatchError
from builder.family.budget.export import Budget, BudgetExporter
from builder.family.budget.options import lossy_fields
from builder.family.export import Exporters
from builder.family.family import Member
from builder.publish.cache import Made
from builder.publish.canonical import Json
from builder.publish.patches import CHANGED_CODES
from builder.publish.steps import Steps, sources_sha256

Lossy = dict[str, Any] | None


class BudgetedMaker:
    """Makes members with a budget; `code` is all that their bytes depend on beside the family's own files."""

    def __init__(
        self, steps: Steps, exporters: Exporters, opening: threading.Lock, code: Json, effort: int
    ) -> None:
        self._steps, self._exporters, self._opening, self._effort = steps, exporters, opening, effort
        self._code: Json = [code, sources_sha256("builder.family.budget", "builder.delta")]

    def make(
        self, member: Member, ingredients: dict[str, Json], base: Made, require_unchanged: Callable[[], None]
    ) -> tuple[Made, Made, Lossy]:
        """The whole file, its patch, and the manifest's record. Raises FamilyError (docs/budget.md)."""
        budget = member.budget or ""
        key = {**ingredients, "step": "budget", "budget": budget, "base": base.sha256, "effort": self._effort}

        def made() -> tuple[bytes, dict[str, float]]:
            if member.checkpoint is not None:
                with self._opening:  # One checkpoint is read once, whoever comes first.
                    self._exporters.of(member)
            exporter = BudgetExporter(base.read(), self._exporters, effort=self._effort)
            result = exporter.export(member, Budget.of(budget))
            require_unchanged()
            record = None if result.lossy is None else lossy_fields(result.lossy)
            return json.dumps(record).encode() + b"\n" + result.patch, {}

        both = self._steps.once(f"budget {member.id}", {**key, "code": self._code}, made)
        record, _, patch = both.read().partition(b"\n")
        return *self._apart(member, both.sha256, base, patch), json.loads(record)

    def _apart(self, member: Member, made_of: str, base: Made, patch: bytes) -> tuple[Made, Made]:
        def whole() -> tuple[bytes, dict[str, float]]:
            return apply_patch(base.read(), patch), {}

        target = self._steps.once(f"export {member.id}", {"step": "whole", "of": made_of}, whole)

        def alone() -> tuple[bytes, dict[str, float]]:
            data = target.read()
            if apply_patch(base.read(), patch) != data:
                raise PatchError(f"{member.id}: its patch does not give the model back")
            return patch, {CHANGED_CODES: changed_code_share(base.read(), data)}

        key: Json = {"step": "alone", "of": made_of}
        return target, self._steps.once(f"patch {member.id}", key, alone, facts=(CHANGED_CODES,))
