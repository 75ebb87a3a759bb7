"""A release, read back: its manifest and its members, every byte proved on the way.

Owns: `Release`, and `Site`, the release in a folder. Knows nothing of: the page, what members are for.
Source: docs/formats/manifest.md.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
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


class Release(ABC):
    """One release, wherever it lies. Nothing that it returns is unproved, and nothing is kept."""

    manifest: Manifest

    def member_bytes(self, member_id: str) -> bytes:
        """The complete `.cact` of a member.

        Raises ManifestError (part_missing, part_hash_mismatch, file_hash_mismatch, ...), and PatchError for a
        patch that cannot be applied.
        """
        member = self.manifest.member(member_id)
        if member.delivery.kind == "patch":
            patch = self.patch_bytes(member_id, member.delivery)
            data = apply_patch(self.delivered_bytes(self.manifest.base.delivery), patch)
        else:
            data = self.delivered_bytes(member.delivery)
        if (found := hashlib.sha256(data).hexdigest()) != member.sha256:
            raise _mismatch(member_id, "model", found, member.sha256)
        _require_size(member_id, data, member.bytes)
        return data

    def delivered_bytes(self, delivery: Delivery) -> bytes:
        """The parts of a delivery, each proved, joined."""
        return b"".join(self.part_bytes(part) for part in delivery.parts)

    def patch_bytes(self, name: str, delivery: Delivery) -> bytes:
        """A patch, proved; `name` is whose. Raises ManifestError."""
        data = self.delivered_bytes(delivery)
        if (found := hashlib.sha256(data).hexdigest()) != delivery.sha256:
            raise _mismatch(name, "patch", found, str(delivery.sha256))
        return data

    def part_bytes(self, part: Part) -> bytes:
        """One part. Raises ManifestError if it is not there or not what its name says."""
        return self.file_bytes(part.path, part.sha256, part.bytes)

    def file_bytes(self, path: str, sha256: str, byte_count: int) -> bytes:
        """One immutable file of the release, proved."""
        data = self._read(path, byte_count)
        if (found := hashlib.sha256(data).hexdigest()) != sha256:
            raise _mismatch(self._name(path), "sha256", found, sha256, code="part_hash_mismatch")
        _require_size(path, data, byte_count)
        return data

    @abstractmethod
    def _read(self, path: str, byte_count: int) -> bytes:
        """At most `byte_count` bytes. Raises ManifestError for a file that is not there or longer."""

    @abstractmethod
    def _name(self, path: str) -> str:
        """What to call a file in a sentence."""


class Site(Release):
    """The release in a folder; each call reads again."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def _name(self, path: str) -> str:
        return str(self.folder / path)

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
