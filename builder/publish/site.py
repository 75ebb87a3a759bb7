"""A packed site, read back: its manifest and its members, every byte proved on the way.

Owns: `open_site` and `Site`. Knows nothing of: the page, what members are for. Source:
docs/formats/manifest.md.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from builder.delta import apply_patch
from builder.errors import ManifestError, refusal
from builder.files import read_regular
from builder.publish.folder import MANIFEST
from builder.publish.manifest import MANIFEST_BYTES_MAX, Delivery, Manifest, Part, read_manifest

# What `read_regular` says, by the name that it has in the page too.
CODES = {
    "unreadable": "part_missing",
    "too_large": "part_hash_mismatch",
    "lfs_pointer": "part_is_lfs_pointer",
}


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
        data = self._read(path, byte_count)
        if (found := hashlib.sha256(data).hexdigest()) != sha256:
            raise _mismatch(self.folder / path, "sha256", found, sha256, code="part_hash_mismatch")
        _require_size(path, data, byte_count)
        return data

    def _read(self, path: str, byte_count: int) -> bytes:
        place = self.folder / path
        if not place.exists():
            step = "pack again, or upload the whole folder"
            sentence = refusal(place, "file", found="missing", allowed="there", next_step=step)
            raise ManifestError(sentence, code="part_missing")
        try:
            return read_regular(place, byte_count, error=ManifestError)
        except ManifestError as error:
            raise ManifestError(str(error), code=CODES[error.code]) from None


def open_site(folder: str | Path) -> Site:
    """Open a folder that `pack` wrote. Raises ManifestError if it has no sound manifest."""
    path = Path(folder) / MANIFEST
    if not path.exists():
        step = f"make one: python -m builder pack --out {folder}"
        sentence = refusal(folder, MANIFEST, found="missing", allowed="there", next_step=step)
        raise ManifestError(sentence, code="manifest_missing")
    data = read_regular(path, MANIFEST_BYTES_MAX, error=ManifestError)
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
