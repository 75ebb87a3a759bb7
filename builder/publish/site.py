"""A packed site, read back: its manifest and its members, every byte proved on the way.

Owns: `open_site` and `Site`. Knows nothing of: the page, what members are for. Source:
docs/formats/manifest.md.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from builder.delta import apply_patch
from builder.errors import ManifestError, refusal
from builder.publish.folder import MANIFEST
from builder.publish.manifest import MANIFEST_BYTES_MAX, Delivery, Manifest, Part, read_manifest


class Site:
    """One site on disk. Nothing that it returns is unproved, and nothing is kept: each call reads again."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def member_bytes(self, member_id: str) -> bytes:
        """The complete `.cact` of a member.

        Raises ManifestError (part_missing, part_hash_mismatch, file_hash_mismatch, ...), and PatchError for a
        patch that cannot be applied.
        """
        member = self.manifest.member(member_id)
        data = self.delivered_bytes(member.delivery)
        if member.delivery.kind == "patch":
            if (found := hashlib.sha256(data).hexdigest()) != member.delivery.sha256:
                raise _mismatch(member_id, "patch", found, str(member.delivery.sha256))
            data = apply_patch(self.delivered_bytes(self.manifest.base.delivery), data)
        if (found := hashlib.sha256(data).hexdigest()) != member.sha256:
            raise _mismatch(member_id, "model", found, member.sha256)
        _require_size(member_id, data, member.bytes)
        return data

    def delivered_bytes(self, delivery: Delivery) -> bytes:
        """The parts of a delivery, each proved, joined."""
        return b"".join(self.part_bytes(part) for part in delivery.parts)

    def part_bytes(self, part: Part) -> bytes:
        """One part. Raises ManifestError if it is not there or not what its name says."""
        return self.file_bytes(part.path, part.sha256, part.bytes)

    def file_bytes(self, path: str, sha256: str, byte_count: int) -> bytes:
        """One immutable file of the site, proved."""
        try:
            data = (self.folder / path).read_bytes()
        except OSError:
            step = "pack again, or upload the whole folder"
            raise ManifestError(
                refusal(self.folder / path, "file", found="missing", allowed="there", next_step=step),
                code="part_missing",
            ) from None
        if data.startswith(b"version https://git-lfs"):
            raise ManifestError(
                f"{self.folder / path}: is a Git LFS pointer, not the file; many hosts do not serve Git LFS",
                code="part_is_lfs_pointer",
            )
        if (found := hashlib.sha256(data).hexdigest()) != sha256:
            raise _mismatch(self.folder / path, "sha256", found, sha256, code="part_hash_mismatch")
        _require_size(path, data, byte_count)
        return data


def open_site(folder: str | Path) -> Site:
    """Open a folder that `pack` wrote. Raises ManifestError if it has no sound manifest."""
    path = Path(folder) / MANIFEST
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError:
        step = f"make one: python -m builder pack --out {folder}"
        sentence = refusal(folder, MANIFEST, found="missing", allowed="there", next_step=step)
        raise ManifestError(sentence, code="manifest_missing") from None
    return Site(Path(folder), read_manifest(data, path))


def _mismatch(
    subject: object, field: str, found: str, wanted: str, code: str = "file_hash_mismatch"
) -> ManifestError:
    return ManifestError(
        refusal(subject, field, found=f"{found[:12]}...", allowed=f"{wanted[:12]}..."), code=code
    )


def _require_size(subject: object, data: bytes, byte_count: int) -> None:
    """The hash is right, so a wrong size is the manifest's fault."""
    if len(data) != byte_count:
        raise ManifestError(
            refusal(subject, "bytes", found=byte_count, allowed=str(len(data))), code="manifest_invalid"
        )
