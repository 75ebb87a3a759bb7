"""From the bases of earlier releases to this one: patches for visitors who come back.

Owns: which earlier bases get a patch, and the words for those that do not.
Knows nothing of: where earlier releases lie (previous.py), how a patch is made (patches.py).
Source: docs/publish.md, "Returning visitors".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from builder.delta import apply_patch, read_patch_header
from builder.errors import ContainerError, ManifestError, PatchError, UsageError, refusal
from builder.files import SHORT_HASH
from builder.publish.cache import Cache, Made
from builder.publish.manifest import UPGRADES_MAX, Base, Piece, Upgrade
from builder.publish.patches import CHANGED_CODES, PatchMaker
from builder.publish.previous import naming_the_next_step
from builder.publish.site import Release


@dataclass(frozen=True)
class Upgraded:
    """What became of one earlier base: a patch from it, or a note that says why there is none."""

    previous: str
    """The release as it was named, by folder or address."""
    from_sha256: str
    from_bytes: int
    from_parts: tuple[Piece, ...]
    patch: Made | None
    note: str = ""

    @property
    def changed_codes(self) -> float | None:
        """Share of codes that differ from the earlier base's, where the patch was made here."""
        return self.patch.facts.get(CHANGED_CODES) if self.patch else None


class UpgradeMaker:
    """Makes one upgrade per earlier base; the first of several releases with one base counts."""

    def __init__(self, base: Made, patches: PatchMaker, cache: Cache) -> None:
        self._base, self._patches, self._cache = base, patches, cache

    def make(self, releases: Sequence[tuple[str, Release]]) -> list[Upgraded]:
        """In order of the releases. Raises ManifestError for an earlier release that is damaged."""
        seen = {self._base.sha256}
        upgrades = []
        for upgraded in self._all(releases):
            is_new = upgraded.patch is None or upgraded.from_sha256 not in seen
            if is_new:
                upgrades.append(upgraded)
            if upgraded.patch:
                seen.add(upgraded.from_sha256)
        count = sum(upgraded.patch is not None for upgraded in upgrades)
        if count > UPGRADES_MAX:
            raise UsageError(
                f"--previous: gives {count} upgrades, must be at most {UPGRADES_MAX}; name fewer"
            )
        return upgrades

    def _all(self, releases: Iterable[tuple[str, Release]]) -> Iterator[Upgraded]:
        for where, release in releases:
            with naming_the_next_step():
                yield from self._of(where, release)

    def _of(self, where: str, release: Release) -> Iterator[Upgraded]:
        base = release.manifest.base
        if base.sha256 != self._base.sha256:
            yield self._from(where, release)
            return
        yield _without(where, base, "has the same base: nobody needs an upgrade from it")
        for upgrade in base.upgrades:
            try:
                yield self._taken_over(where, release, upgrade)
            except PatchError as error:  # As when the format of patches has changed since.
                yield _without(where, base, f"an upgrade of it cannot be taken over: {error}")

    def _from(self, where: str, release: Release) -> Upgraded:
        base = release.manifest.base
        step = f"upgrade from {base.sha256[:SHORT_HASH]}"
        data = release.member_bytes(base.id)  # Though the cache may have the patch: refusals do not ask it.
        try:
            patch = self._patches.make(step, base.sha256, lambda: data, self._base)
        except ContainerError as error:
            return _without(where, base, f"its base cannot be patched: {error}")
        if patch.byte_count >= self._base.byte_count:
            return _without(
                where, base, f"a patch would take {patch.byte_count:,} bytes, no less than the whole base"
            )
        return Upgraded(where, base.sha256, base.bytes, _pieces(base), patch)

    def _taken_over(self, where: str, release: Release, upgrade: Upgrade) -> Upgraded:
        """An upgrade to this very base, made for an earlier release: its own base need not be at hand."""
        patch = prove_upgrade(release, upgrade, None)
        made = self._cache.put({"step": "taken over", "patch": upgrade.delivery.sha256}, patch, {})
        return Upgraded(where, upgrade.from_sha256, upgrade.from_bytes, upgrade.from_parts, made)


def prove_upgrade(release: Release, upgrade: Upgrade, earlier: Release | None) -> bytes:
    """The patch of an upgrade of this release, bound to both bases, and applied to `earlier`'s if given.

    Raises ManifestError and PatchError for what is not exact.
    """
    name = f"upgrade from {upgrade.from_sha256[:SHORT_HASH]}"
    patch, base = release.patch_bytes(name, upgrade.delivery), release.manifest.base
    header = read_patch_header(patch)
    found = (header.base_sha256, header.base_bytes, header.target_sha256, header.target_bytes)
    if found != (upgrade.from_sha256, upgrade.from_bytes, base.sha256, base.bytes):
        words = refusal(name, "patch", found="between other files", allowed="from that base to this one")
        raise ManifestError(words, code="manifest_invalid")
    if earlier is not None:
        data = earlier.member_bytes(earlier.manifest.base.id)
        if not _is_cut_into(upgrade.from_parts, data):
            words = refusal(name, "from_parts", found="those of another file", allowed="the earlier base's")
            raise ManifestError(words, code="manifest_invalid")
        apply_patch(data, patch)
    return patch


def _is_cut_into(pieces: Iterable[Piece], data: bytes) -> bool:
    offset = 0
    for piece in pieces:
        if hashlib.sha256(data[offset : offset + piece.bytes]).hexdigest() != piece.sha256:
            return False
        offset += piece.bytes
    return True


def _without(where: str, base: Base, note: str) -> Upgraded:
    return Upgraded(where, base.sha256, base.bytes, _pieces(base), None, note)


def _pieces(base: Base) -> tuple[Piece, ...]:
    return tuple(Piece(bytes=part.bytes, sha256=part.sha256) for part in base.delivery.parts)
