"""Whether a site is whole: all that it names is there and is what it says, and nothing of ours lies about.

Owns: the list of checks; each that fails gives one sentence, and the others go on.
Knows nothing of: how to mend a site (pack again). Source: docs/publish.md, "Verify".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

from builder.errors import RefusedError, SaguaroError, refusal
from builder.files import read_regular
from builder.publish.folder import MANIFEST, PREVIOUS, files_of, is_ours, site_files
from builder.publish.manifest import MANIFEST_BYTES_MAX, PART_BYTES_MAX, Delivery, Manifest, read_manifest
from builder.publish.pages import INDEX, SERVICE_WORKER, has_integrity, is_sealed, precache_of
from builder.publish.site import Site, open_site
from builder.publish.upgrades import prove_upgrade

Arguments = ParamSpec("Arguments")


@dataclass
class Verdict:
    """What was found; `models` are (id, bytes, sha256) of what was proved, `foreign` files are not ours.

    `upgrades` are (sha256 of the earlier base, bytes of the patch, whether it was applied here).
    """

    models: list[tuple[str, int, str]] = field(default_factory=list)
    upgrades: list[tuple[str, int, bool]] = field(default_factory=list)
    part_count: int = 0
    mismatches: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


def verify(folder: Path) -> Verdict:
    """Check a whole site. Raises ManifestError only if there is no sound manifest to go by."""
    checks = _Checks(open_site(folder))
    checks.models()
    checks.engine()
    checks.page()
    checks.previous()
    checks.upgrades()
    checks.strays()
    return checks.verdict


class _Checks:
    """Each method is one group of checks; `_needed` collects the paths that belong to the site."""

    def __init__(self, site: Site) -> None:
        self.verdict = Verdict()
        self._site, self._folder, self._manifest = site, site.folder, site.manifest
        self._needed = {MANIFEST, INDEX, SERVICE_WORKER}
        self._good: dict[str, bool] = {}
        self._earlier: Site | None = None

    def models(self) -> None:
        """Every part, then every model whose parts are sound: one damaged part is told once."""
        self._parts(self._manifest)
        self.verdict.part_count = len(self._good)
        base_is_good = self._is_good(self._manifest.base.delivery)
        for member in self._manifest.members:
            if base_is_good and self._is_good(member.delivery):
                proof = (member.id, member.bytes, member.sha256)
                if self._attempt(self._site.member_bytes, member.id):
                    self.verdict.models.append(proof)

    def engine(self) -> None:
        """The engine's bytes."""
        self._engine(self._manifest)

    def page(self) -> None:
        """The two sealed files, and through the service worker's list every file of the app folder."""
        listed: dict[str, str] = {}
        for name in (INDEX, SERVICE_WORKER):
            data = self._read(name)
            if data is None:
                continue
            if not is_sealed(data):
                self._mismatch(name, "seal", "another file's", "that of its own bytes")
            elif self._manifest.release.encode() not in data:
                self._mismatch(
                    name, "release", "another one", f"{self._manifest.release[:12]}..., as in {MANIFEST}"
                )
            elif name == SERVICE_WORKER:
                listed = precache_of(data)
                if not listed:
                    self._mismatch(name, "precache list", "missing or of another form", "as pack writes it")
        for path, integrity in sorted(listed.items()):
            self._needed.add(path)
            if integrity and (data := self._read(path)) is not None and not has_integrity(data, integrity):
                self._mismatch(path, "sha256", "another one", f"the one in {SERVICE_WORKER}")
        if not listed:
            self._needed.update(files_of(self._folder, self._manifest))

    def previous(self) -> None:
        """The release before, if it is kept: its parts and its engine."""
        path = self._folder / PREVIOUS
        if not path.exists():
            return
        self._needed.add(PREVIOUS)
        kept: list[Manifest] = []
        if self._attempt(lambda: kept.append(read_manifest(read_regular(path, MANIFEST_BYTES_MAX), path))):
            self._parts(kept[0])
            self._engine(kept[0])
            self._needed.update(files_of(self._folder, kept[0]))
            self._earlier = Site(self._folder, kept[0])

    def upgrades(self) -> None:
        """Each upgrade is bound to its two bases; where the earlier one is kept here, it is applied to it."""
        for upgrade in self._manifest.base.upgrades:
            earlier = self._earlier if self._has_base(self._earlier, upgrade.from_sha256) else None
            proof = (upgrade.from_sha256, upgrade.delivery.bytes, earlier is not None)
            if self._is_good(upgrade.delivery) and self._attempt(prove_upgrade, self._site, upgrade, earlier):
                self.verdict.upgrades.append(proof)

    def strays(self) -> None:
        """Files of ours that no release names; files of other names are the deployment's."""
        for path in site_files(self._folder):
            if path in self._needed:
                continue
            if is_ours(path):
                self._mismatch(path, "file", "named by no release here", "removed; pack again")
            else:
                self.verdict.foreign.append(path)

    def _parts(self, manifest: Manifest) -> None:
        """Prove each part once, whatever names it."""
        for part in manifest.parts:
            self._needed.add(part.path)
            if part.path not in self._good:
                self._good[part.path] = self._attempt(self._site.part_bytes, part)

    def _has_base(self, site: Site | None, sha256: str) -> bool:
        """Whether this is the base of a release here, every part of it sound."""
        base = site.manifest.base if site else None
        return base is not None and base.sha256 == sha256 and self._is_good(base.delivery)

    def _is_good(self, delivery: Delivery) -> bool:
        return all(self._good[part.path] for part in delivery.parts)

    def _engine(self, manifest: Manifest) -> None:
        for module in manifest.engine.modules:
            self._needed.add(module.path)
            self._attempt(self._site.file_bytes, module.path, module.sha256, module.bytes)

    def _read(self, name: str) -> bytes | None:
        path = self._folder / name
        if not path.exists():
            self._mismatch(name, "file", "missing", "there; pack again, or upload the whole folder")
            return None
        try:
            return read_regular(path, PART_BYTES_MAX)  # No host serves a larger file.
        except RefusedError as error:
            self.verdict.mismatches.append(str(error))
            return None

    def _attempt(
        self, check: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> bool:
        try:
            check(*arguments, **named)
        except SaguaroError as error:
            self.verdict.mismatches.append(str(error))
            return False
        return True

    def _mismatch(self, name: str, field: str, found: str, allowed: str) -> None:
        self.verdict.mismatches.append(refusal(self._folder / name, field, found=found, allowed=allowed))
