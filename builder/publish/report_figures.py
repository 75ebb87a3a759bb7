"""What the report page shows: each member of a packed site, what it costs and why.

Owns: the figures, read from the site itself, so that they are of what visitors get. Does not know: HTML
(report_page.py), how patches are coded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from builder.delta import changed_code_counts, inspect_patch
from builder.publish.generic_tools import GenericSize, GenericTool, best_size
from builder.publish.manifest import Member
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
    """One member; `shares` and `tensors` are empty, and `generic` is None, where no patch travels."""

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


def site_figures(site: Site, tools: list[GenericTool], progress: Callable[[str], None]) -> SiteFigures:
    """Rebuild every member and measure it; `progress` hears each member's id.

    Raises ManifestError or PatchError if the site is not whole.
    """
    manifest = site.manifest
    base = site.member_bytes(manifest.base.id)
    roles = {manifest.base.id: "base"} | ({manifest.router.id: "router"} if manifest.router else {})
    members = []
    for member in manifest.members:
        progress(member.id)
        members.append(_member(site, member, roles.get(member.id, "specialist"), base, tools))
    names = tuple(tool.name for tool in tools)
    return SiteFigures(manifest.title, manifest.release, names, tuple(members))


def _member(site: Site, member: Member, role: str, base: bytes, tools: list[GenericTool]) -> MemberFigure:
    delivery = member.delivery
    plain = MemberFigure(member.id, member.title, role, member.bytes, delivery.bytes, None, {}, ())
    if delivery.kind != "patch":
        return plain
    target, patch = site.member_bytes(member.id), site.delivered_bytes(delivery)
    report = inspect_patch(patch, base)
    parts = report.bytes_by_part
    costs = {segment.tensor: segment for segment in report.segments if segment.tensor}
    tensors = []
    for name, (changed, count) in changed_code_counts(base, target).items():
        segment = costs.get(name)
        rank, patch_bytes = (segment.rank, segment.patch_bytes) if segment else (0, 0)
        tensors.append(TensorFigure(name, changed / count, rank, patch_bytes))
    shares = {name: sum(parts[part] for part in held) for name, held in SHARES.items()}
    return MemberFigure(
        *(member.id, member.title, role, member.bytes, delivery.bytes),
        generic=best_size(tools, base, target),
        shares=shares,
        tensors=tuple(tensors),
    )
