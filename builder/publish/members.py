"""From a family's members to the files that travel: export, compare with the base, patch.

Owns: the order of these steps, what each is made from (so that the cache may answer), several at once.
Knows nothing of: how a member is exported (builder/family) or patched (builder/delta), sites.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from builder.cact.reader import read_container
from builder.delta import apply_patch, changed_code_share, make_patch
from builder.errors import FamilyError, PatchError
from builder.family.adapter import read_adapter
from builder.family.export import Exporters
from builder.family.family import Family, Member
from builder.files import regular_size
from builder.publish.cache import Cache, Made, changed_meanwhile
from builder.publish.canonical import DECIMALS_MAX, Json
from builder.publish.compatible import require_changed, require_compatible, require_different

# Settings that do not reach the bytes of an exported container.
NOT_EXPORTED = {"name", "title", "tokenizer", "examples"}
Item = TypeVar("Item")
Result = TypeVar("Result")
# Told before each step: its name, how many steps are behind, how many there are; from several threads.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Delivered:
    """One member: its whole container, and what travels, which is the smaller of that and a patch."""

    member: Member
    whole: Made
    kind: str
    travels: Made
    changed_codes: float
    """Share of codes that differ from the base's; 0 for the base."""


class MemberMaker:
    """Makes members; `made` and `reused` name the steps that were done and those that the cache answered."""

    def __init__(
        self, family: Family, cache: Cache, engine_sha256: str, progress: Progress, *, jobs: int, effort: int
    ) -> None:
        self._family, self._cache, self._progress = family, cache, progress
        self._jobs, self._effort = jobs, effort
        self._exporters, self._opening = Exporters(family), threading.Lock()
        self._step_count = sum(member.cact is None for member in family.members) + len(family.members) - 1
        self._export_code: Json = sources_sha256("builder.family", "builder.cact")
        self._patch_code: Json = [sources_sha256("builder.delta"), engine_sha256]
        self.made: list[str] = []
        self.reused: list[str] = []

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
        return [self._export(self._family.base), *self._each(self._export, self._family.members[1:])]

    def _export(self, member: Member) -> Made:
        if member.cact is not None:
            data = read_container(member.cact).data
            return Made(member.cact, len(data), hashlib.sha256(data).hexdigest(), {})
        hashes = self._input_hashes(member)
        ingredients: Json = {
            "step": "export",
            "code": self._export_code,
            "files": hashes,
            "settings": self._family.settings.model_dump(mode="json", exclude=NOT_EXPORTED),
        }

        def make() -> tuple[bytes, dict[str, float]]:
            with self._opening:  # One checkpoint is read once, whoever comes first.
                self._exporters.of(member)
            data = self._exporters.export(member, None)
            if self._input_hashes(member) != hashes:
                raise changed_meanwhile(member.adapter or member.checkpoint or self._family.path)
            return data, {}

        return self._once(f"export {member.id}", ingredients, make)

    def _input_hashes(self, member: Member) -> dict[str, Json]:
        files = {
            "checkpoint": member.checkpoint,
            "adapter": member.adapter,
            "tokenizer": self._family.tokenizer,
        }
        return {name: file_sha256(path) for name, path in files.items() if path is not None}

    def _patch(self, base_data: bytes, base: Made, member: Member, whole: Made) -> Delivered:
        seed = read_adapter(member.adapter).seed if member.adapter else 0
        ingredients: Json = {
            "step": "patch",
            "code": self._patch_code,
            "base": base.sha256,
            "target": whole.sha256,
            "effort": self._effort,
            "adapter_seed": seed,
        }

        def make() -> tuple[bytes, dict[str, float]]:
            target = whole.read()
            patch = make_patch(base_data, target, effort=self._effort, adapter_seed=seed)
            if apply_patch(base_data, patch) != target:
                raise PatchError(
                    f"{member.id}: the patch maker made a patch that does not give the member back"
                )
            return patch, {"changed_codes": changed_code_share(base_data, target)}

        patch = self._once(f"patch {member.id}", ingredients, make, facts=("changed_codes",))
        changed_codes = patch.facts["changed_codes"]
        if member.role == "specialist":
            require_changed(member.id, changed_codes)
        kind, travels = ("patch", patch) if patch.byte_count < whole.byte_count else ("whole", whole)
        return Delivered(member, whole, kind, travels, round(changed_codes, DECIMALS_MAX))

    def _once(
        self,
        step: str,
        ingredients: Json,
        make: Callable[[], tuple[bytes, dict[str, float]]],
        facts: tuple[str, ...] = (),
    ) -> Made:
        found = self._cache.get(ingredients, facts)
        if found is not None:
            self.reused.append(step)
            return found
        self._progress(step, len(self.made) + len(self.reused), self._step_count)
        self.made.append(step)
        return self._cache.put(ingredients, *make())

    def _each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`[work(item) for item in items]`, several at once; of many failures the first in order counts."""
        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def file_sha256(path: Path) -> str:
    """Lower-case hex SHA-256 of a file. Raises FamilyError (unreadable) for what is no file."""
    regular_size(path, error=FamilyError)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sources_sha256(*packages: str) -> str:
    """SHA-256 over the sources of these packages: what they make may change when these do."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(resources.files(package).iterdir(), key=lambda path: path.name):
            if path.name.endswith(".py"):
                digest.update(
                    f"{package}/{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
                )
    return digest.hexdigest()
