"""From a family to a site: members, parts, page and manifest, put in place together.

Owns: which files a release consists of, and the report of what they cost.
Knows nothing of: terminals, how each thing is made. Source: docs/publish.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from builder.cact.reader import read_container
from builder.delta.make import DEFAULT_EFFORT
from builder.errors import UsageError
from builder.family.family import Family, Member
from builder.publish.cache import Cache, Made
from builder.publish.calls import require_callable
from builder.publish.canonical import DECIMALS_MAX
from builder.publish.engine_file import EngineFile, maker_sha256, read_engines
from builder.publish.folder import MANIFEST, Written, read_present, write_release
from builder.publish.manifest import app_path, engine_path, read_manifest, write_manifest
from builder.publish.members import Delivered, MemberMaker, step_count
from builder.publish.pages import PageSource, build_page, read_page
from builder.publish.parts import PartSource, cut
from builder.publish.patches import PatchMaker
from builder.publish.previous import open_previous
from builder.publish.steps import Progress, Steps
from builder.publish.upgrades import Upgraded, UpgradeMaker
from builder.runtime.engine import NUMERICS

NO_RELEASE = "0" * 64  # Builds the page once before any model, so that what is wrong with it is said at once.


@dataclass(frozen=True)
class MemberCost:
    """What one member costs a visitor."""

    id: str
    role: str
    kind: str
    whole_bytes: int
    delivered_bytes: int
    part_count: int
    changed_codes: float
    is_lossy: bool

    @property
    def share(self) -> float:
        """Delivered bytes as a share of the whole file's."""
        return self.delivered_bytes / self.whole_bytes


@dataclass(frozen=True)
class UpgradeCost:
    """What the new base costs a visitor who has an earlier one, or why it costs them the whole base."""

    previous: str
    from_sha256: str
    whole_bytes: int
    delivered_bytes: int | None
    part_count: int
    changed_codes: float | None
    note: str

    @property
    def share(self) -> float | None:
        """Delivered bytes as a share of the whole base's."""
        return None if self.delivered_bytes is None else self.delivered_bytes / self.whole_bytes


@dataclass(frozen=True)
class Report:
    """What a pack made and what it costs; sizes are bytes before any compression by the host."""

    site: Path
    name: str
    release: str
    members: tuple[MemberCost, ...]
    upgrades: tuple[UpgradeCost, ...]
    page_bytes: int
    engine_bytes: int
    manifest_bytes: int
    written: Written
    made: tuple[str, ...]
    reused: tuple[str, ...]

    @property
    def first_visit_bytes(self) -> int:
        """Page, engine, base, and the router, which the first message needs."""
        models = sum(cost.delivered_bytes for cost in self.members if cost.role != "specialist")
        return self.page_bytes + self.engine_bytes + self.manifest_bytes + models

    @property
    def family_bytes(self) -> int:
        """All members as they travel."""
        return sum(cost.delivered_bytes for cost in self.members)

    @property
    def whole_bytes(self) -> int:
        """All members as whole files, which is what the family would cost without patches."""
        return sum(cost.whole_bytes for cost in self.members)


@dataclass(frozen=True)
class Options:
    """How to pack."""

    part_bytes: int
    jobs: int
    cache_folder: Path
    web_folder: Path
    keep_previous: bool = True
    numerics: str = NUMERICS[0]
    effort: int = DEFAULT_EFFORT
    previous: tuple[str, ...] = ()
    """Earlier releases, by folder or address, whose visitors are to pay only for the change of the base."""


def pack(family: Family, out: Path, options: Options, progress: Progress) -> Report:
    """Write the family's site to `out`. Raises a RefusedError before anything in `out` has changed."""
    _require_apart(out, options.cache_folder)
    read_present(out)
    page = read_page(options.web_folder)
    build_page(page, NO_RELEASE)
    engines = read_engines(options.numerics)
    earlier = [(where, open_previous(where)) for where in options.previous]
    cache = Cache(options.cache_folder)
    with cache.in_use():
        steps = Steps(cache, progress, step_count(family) + len(earlier))
        patches = PatchMaker(steps, [engines[0].sha256, maker_sha256()], options.effort)
        delivered = MemberMaker(family, steps, patches, jobs=options.jobs).deliver()
        require_callable(delivered[0].whole.read(), family.members)
        upgrades = UpgradeMaker(delivered[0].whole, patches, cache).make(earlier)
        report = _publish(family, out, options, page, engines, delivered, upgrades, steps)
    cache.prune()
    return report


def _publish(
    family: Family,
    out: Path,
    options: Options,
    page: PageSource,
    engines: Sequence[EngineFile],
    delivered: list[Delivered],
    upgrades: list[Upgraded],
    steps: Steps,
) -> Report:
    parts = {item.member.id: cut(item.travels.path, options.part_bytes) for item in delivered}
    cuts = [cut(item.patch.path, options.part_bytes) if item.patch else [] for item in upgrades]
    fields = _fields(family, delivered, parts, page, engines)
    entries = [
        _upgrade_entry(item, item.patch, pieces)
        for item, pieces in zip(upgrades, cuts, strict=True)
        if item.patch
    ]
    fields["base"] |= {"upgrades": entries} if entries else {}
    manifest = write_manifest(fields | {"numerics": options.numerics})
    release = read_manifest(manifest).release
    files = build_page(page, release)
    groups = [*parts.values(), *cuts]
    immutable: dict[str, bytes | PartSource] = {part.path: part for group in groups for part in group}
    immutable |= {engine_path(engine.sha256): engine.data for engine in engines}
    immutable |= {path: data for path, data in files.items() if "/" in path}
    replaced = {path: data for path, data in files.items() if "/" not in path} | {MANIFEST: manifest}
    written = write_release(out, immutable, replaced, keep_previous=options.keep_previous)
    return Report(
        site=out,
        name=family.name,
        release=release,
        members=tuple(_cost(item, parts[item.member.id]) for item in delivered),
        upgrades=tuple(map(_upgrade_cost, upgrades, repeat(delivered[0]), cuts)),
        page_bytes=sum(map(len, files.values())),
        engine_bytes=max(len(engine.data) for engine in engines),
        manifest_bytes=len(manifest),
        written=written,
        made=tuple(sorted(steps.made)),
        reused=tuple(sorted(steps.reused)),
    )


def _require_apart(out: Path, cache_folder: Path) -> None:
    """Raise UsageError if the cache would be published, or the site lie in the cache."""
    site, cache = out.resolve(), cache_folder.resolve()
    if site.is_relative_to(cache) or cache.is_relative_to(site):
        raise UsageError(
            f"--cache: is {cache_folder}, must be outside of --out, which is {out}, and not around it"
        )


def _cost(item: Delivered, parts: list[PartSource]) -> MemberCost:
    return MemberCost(
        id=item.member.id,
        role=item.member.role,
        kind=item.kind,
        whole_bytes=item.whole.byte_count,
        delivered_bytes=item.travels.byte_count,
        part_count=len(parts),
        changed_codes=item.changed_codes,
        is_lossy=item.lossy is not None,
    )


def _upgrade_cost(item: Upgraded, base: Delivered, parts: list[PartSource]) -> UpgradeCost:
    changed_codes = item.changed_codes
    return UpgradeCost(
        previous=item.previous,
        from_sha256=item.from_sha256,
        whole_bytes=base.whole.byte_count,
        delivered_bytes=item.patch.byte_count if item.patch else None,
        part_count=len(parts),
        changed_codes=None if changed_codes is None else round(changed_codes, DECIMALS_MAX),
        note=item.note,
    )


def _fields(
    family: Family,
    delivered: list[Delivered],
    parts: dict[str, list[PartSource]],
    page: PageSource,
    engines: Sequence[EngineFile],
) -> dict[str, Any]:
    """The manifest's fields (docs/formats/manifest.md)."""
    header = read_container(delivered[0].whole.path).header
    entries = [(item.member.role, _entry(item, parts[item.member.id])) for item in delivered]
    return {
        "name": family.name,
        "title": family.title,
        "container": {"tag": f"{header.tag:#010x}", "generation": header.generation},
        "app": {"path": app_path(page.sha256), "sha256": page.sha256},
        "engine": _engine_entry(*engines),
        **{role: entry for role, entry in entries if role != "specialist"},
        "specialists": [entry for role, entry in entries if role == "specialist"],
        **({"examples": list(family.examples)} if family.examples else {}),
    }


def _engine_entry(plain: EngineFile, relaxed: EngineFile | None = None) -> dict[str, Any]:
    twin = {"relaxed": _module_entry(relaxed)} if relaxed else {}
    return {**_module_entry(plain), "abi": plain.abi, **twin}


def _module_entry(engine: EngineFile) -> dict[str, Any]:
    return {"path": engine_path(engine.sha256), "bytes": len(engine.data), "sha256": engine.sha256}


def _entry(item: Delivered, parts: list[PartSource]) -> dict[str, Any]:
    member = item.member
    entry: dict[str, Any] = {
        "id": member.id,
        "title": member.title,
        "about": member.about,
        "bytes": item.whole.byte_count,
        "sha256": item.whole.sha256,
        "delivery": _delivery(item.kind, item.travels, parts),
        "prompt": _prompt(member),
    }
    if member.max_new_tokens is not None:
        entry["max_new_tokens"] = member.max_new_tokens
    if member.role == "specialist":
        entry["changed_codes"] = item.changed_codes
    if item.lossy is not None:
        entry["lossy"] = item.lossy
    return entry


def _upgrade_entry(item: Upgraded, patch: Made, parts: list[PartSource]) -> dict[str, Any]:
    return {
        "from_sha256": item.from_sha256,
        "from_bytes": item.from_bytes,
        "from_parts": [piece.model_dump() for piece in item.from_parts],
        "delivery": _delivery("patch", patch, parts),
    }


def _delivery(kind: str, travels: Made, parts: list[PartSource]) -> dict[str, Any]:
    entries = [{"path": part.path, "bytes": part.byte_count, "sha256": part.sha256} for part in parts]
    delivery = {"kind": kind, "bytes": travels.byte_count, "parts": entries}
    return delivery | ({"sha256": travels.sha256} if kind == "patch" else {})


def _prompt(member: Member) -> dict[str, Any]:
    return {"system": member.system, "tools": member.tools, "context_turns": member.context_turns}
