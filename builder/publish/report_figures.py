"""What the report page shows: each member and upgrade of a packed site, what it costs and why.

Owns: the figures, read from the site itself, so that they are of what visitors get. Does not know: HTML
(report_page.py), how patches are coded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from builder.delta import changed_code_counts, inspect_patch
from builder.files import SHORT_HASH
from builder.publish.generic_tools import GenericSize, GenericTool, best_size
from builder.publish.manifest import Manifest, Member, Upgrade
from builder.publish.site import Site

# What people call the parts of a patch, and which of `builder.delta.inspect.PARTS` each holds.
SHARES = {
    "side information": ("q", "p"),
    "codes": ("code",),
    "norms": ("norm",),
    "literals": ("literal",),
    "tables and frame": ("table", "frame"),
}


@dataclass(frozen=True)
class TensorFigure:
    """One CQ tensor of a member."""

    name: str
    changed: float
    """Share of codes that differ from the base's."""
    rank: int
    """Of the shift that the patch carries; 0 without one."""
    patch_bytes: int


@dataclass(frozen=True)
class MemberFigure:
    """One member, or an upgrade of the base.

    `shares` and `tensors` are empty, and `generic` is None, where no patch travels, and where the base that
    an upgrade starts from is not at hand.
    """

    id: str
    title: str
    role: str
    whole_bytes: int
    delivered_bytes: int
    generic: GenericSize | None
    shares: dict[str, int]
    tensors: tuple[TensorFigure, ...]


@dataclass(frozen=True)
class SiteFigures:
    """A whole site."""

    title: str
    release: str
    tools: tuple[str, ...]
    members: tuple[MemberFigure, ...]
    upgrades: tuple[MemberFigure, ...] = ()


def figure_ids(manifest: Manifest) -> list[str]:
    """What is measured, in order: the members by id, the upgrades by the base that they start from."""
    return [
        *(member.id for member in manifest.members),
        *(_upgrade_id(upgrade) for upgrade in manifest.base.upgrades),
    ]


def site_figures(
    site: Site,
    tools: list[GenericTool],
    progress: Callable[[str], None],
    earlier: Mapping[str, bytes] = MappingProxyType({}),
) -> SiteFigures:
    """Rebuild every member and measure it; `progress` hears of each of `figure_ids`.

    `earlier` are the bases that upgrades start from, by SHA-256, as far as they are at hand. Raises
    ManifestError or PatchError if the site is not whole.
    """
    manifest = site.manifest
    base = site.member_bytes(manifest.base.id)
    roles = {manifest.base.id: "base"} | ({manifest.router.id: "router"} if manifest.router else {})
    members = []
    for member in manifest.members:
        progress(member.id)
        members.append(_member(site, member, roles.get(member.id, "specialist"), base, tools))
    upgrades = []
    for upgrade in manifest.base.upgrades:
        progress(_upgrade_id(upgrade))
        upgrades.append(_upgrade(site, upgrade, earlier.get(upgrade.from_sha256), base, tools))
    names = tuple(tool.name for tool in tools)
    return SiteFigures(manifest.title, manifest.release, names, tuple(members), tuple(upgrades))


def _member(site: Site, member: Member, role: str, base: bytes, tools: list[GenericTool]) -> MemberFigure:
    delivery = member.delivery
    plain = MemberFigure(member.id, member.title, role, member.bytes, delivery.bytes, None, {}, ())
    if delivery.kind != "patch":
        return plain
    return _patched(plain, base, site.member_bytes(member.id), site.delivered_bytes(delivery), tools)


def _upgrade(
    site: Site, upgrade: Upgrade, earlier: bytes | None, base: bytes, tools: list[GenericTool]
) -> MemberFigure:
    name, delivery = _upgrade_id(upgrade), upgrade.delivery
    plain = MemberFigure(name, f"Base {name}", "upgrade", len(base), delivery.bytes, None, {}, ())
    if earlier is None:
        return plain
    return _patched(plain, earlier, base, site.patch_bytes(name, delivery), tools)


def _upgrade_id(upgrade: Upgrade) -> str:
    return f"from {upgrade.from_sha256[:SHORT_HASH]}"


def _patched(
    plain: MemberFigure, base: bytes, target: bytes, patch: bytes, tools: list[GenericTool]
) -> MemberFigure:
    report = inspect_patch(patch, base)
    parts = report.bytes_by_part
    costs = {segment.tensor: segment for segment in report.segments if segment.tensor}
    tensors = []
    for name, (changed, count) in changed_code_counts(base, target).items():
        segment = costs.get(name)
        rank, patch_bytes = (segment.rank, segment.patch_bytes) if segment else (0, 0)
        tensors.append(TensorFigure(name, changed / count, rank, patch_bytes))
    shares = {name: sum(parts[part] for part in held) for name, held in SHARES.items()}
    return replace(plain, generic=best_size(tools, base, target), shares=shares, tensors=tuple(tensors))
