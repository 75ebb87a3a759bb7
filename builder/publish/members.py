"""From a family's members to the files that travel: export, compare with the base, patch.

Owns: the order of these steps, what an export is made from (so that the cache may answer), several at once.
Knows nothing of: how a member is exported (builder/family) or patched (patches.py), sites.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from builder.cact.reader import read_container
from builder.errors import FamilyError
from builder.family.adapter import read_adapter
from builder.family.export import Exporters
from builder.family.family import Family, Member
from builder.files import regular_size
from builder.publish.budgeted import BudgetedMaker, Lossy
from builder.publish.cache import Made, changed_meanwhile
from builder.publish.canonical import DECIMALS_MAX, Json
from builder.publish.compatible import require_changed, require_compatible, require_different
from builder.publish.patches import CHANGED_CODES, PatchMaker
from builder.publish.steps import Steps, sources_sha256

# Settings that do not reach the bytes of an exported container.
NOT_EXPORTED = {"name", "title", "tokenizer", "examples"}
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Delivered:
    """One member: its whole container, and what travels, which is the smaller of that and a patch."""

    member: Member
    whole: Made
    kind: str
    travels: Made
    changed_codes: float
    """Share of codes that differ from the base's; 0 for the base."""
    lossy: Lossy = None
    """The manifest's record of a member that a budget has changed."""


class MemberMaker:
    """Makes members, several at once."""

    def __init__(self, family: Family, steps: Steps, patches: PatchMaker, *, jobs: int) -> None:
        self._family, self._steps, self._patches, self._jobs = family, steps, patches, jobs
        self._exporters, self._opening = Exporters(family), threading.Lock()
        self._export_code: Json = sources_sha256("builder.family", "builder.cact")
        self._budgeted = BudgetedMaker(
            steps, self._exporters, self._opening, self._export_code, patches.effort
        )
        self._patched: dict[str, tuple[Made, Lossy]] = {}

    def deliver(self) -> list[Delivered]:
        """Every member in manifest order. Raises FamilyError for what cannot work before a patch is made."""
        base, others = self._family.base, self._family.members[1:]
        wholes = dict(zip([base.id, *(member.id for member in others)], self._exports(), strict=True))
        specialists = [member.id for member in self._family.specialists]
        require_different({name: made.sha256 for name, made in wholes.items()}, base.id, specialists)
        whole = wholes[base.id]
        base_data = whole.read()
        container = read_container(base_data)
        for member in others:
            require_compatible(container, read_container(wholes[member.id].path), member.id)
        patched = self._each(lambda member: self._patch(base_data, whole, member, wholes[member.id]), others)
        return [Delivered(base, whole, "whole", whole, 0.0), *patched]

    def _exports(self) -> list[Made]:
        """The base first and alone: it encodes the tensors that the others share with it."""
        base = self._export(self._family.base)
        return [base, *self._each(lambda member: self._export_other(member, base), self._family.members[1:])]

    def _export_other(self, member: Member, base: Made) -> Made:
        if member.budget is None:
            return self._export(member)
        ingredients = self._export_ingredients(member)
        whole, patch, lossy = self._budgeted.make(
            member, ingredients, base, lambda: self._require_unchanged(member, ingredients["files"])
        )
        self._patched[member.id] = patch, lossy
        return whole

    def _export_ingredients(self, member: Member) -> dict[str, Json]:
        return {
            "code": self._export_code,
            "files": self._input_hashes(member),
            "settings": self._family.settings.model_dump(mode="json", exclude=NOT_EXPORTED),
        }

    def _require_unchanged(self, member: Member, hashes: Json) -> None:
        if self._input_hashes(member) != hashes:
            raise changed_meanwhile(member.adapter or member.checkpoint or self._family.path)

    def _export(self, member: Member) -> Made:
        if member.cact is not None:
            data = read_container(member.cact).data
            return Made(member.cact, len(data), hashlib.sha256(data).hexdigest(), {})
        ingredients = self._export_ingredients(member)

        def make() -> tuple[bytes, dict[str, float]]:
            with self._opening:  # One checkpoint is read once, whoever comes first.
                self._exporters.of(member)
            data = self._exporters.export(member, None)
            self._require_unchanged(member, ingredients["files"])
            return data, {}

        return self._steps.once(f"export {member.id}", {**ingredients, "step": "export"}, make)

    def _input_hashes(self, member: Member) -> dict[str, Json]:
        files = {
            "checkpoint": member.checkpoint,
            "adapter": member.adapter,
            "tokenizer": self._family.tokenizer,
        }
        return {name: file_sha256(path) for name, path in files.items() if path is not None}

    def _patch(self, base_data: bytes, base: Made, member: Member, whole: Made) -> Delivered:
        lossy: Lossy = None
        if member.id in self._patched:
            patch, lossy = self._patched[member.id]
        else:
            seed = read_adapter(member.adapter).seed if member.adapter else 0
            step = f"patch {member.id}"
            patch = self._patches.make(step, base.sha256, lambda: base_data, whole, adapter_seed=seed)
        changed_codes = patch.facts[CHANGED_CODES]
        if member.role == "specialist":
            require_changed(member.id, changed_codes)
        kind, travels = ("patch", patch) if patch.byte_count < whole.byte_count else ("whole", whole)
        return Delivered(member, whole, kind, travels, round(changed_codes, DECIMALS_MAX), lossy)

    def _each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`[work(item) for item in items]`, several at once; of many failures the first in order counts."""
        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def step_count(family: Family) -> int:
    """How many exports and patches a family takes."""
    exports = sum(member.cact is None for member in family.members)
    return exports + sum(member.budget is not None for member in family.members) + len(family.members) - 1


def file_sha256(path: Path) -> str:
    """Lower-case hex SHA-256 of a file. Raises FamilyError (unreadable) for what is no file."""
    regular_size(path, error=FamilyError)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
