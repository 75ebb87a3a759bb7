"""Parts: a model or a patch, cut into files that every static host accepts.

Owns: the cut, the part sizes that are allowed, reading a part back out of the file it was cut from.
Knows nothing of: what the bytes mean. Source: docs/formats/manifest.md, `delivery.parts`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from builder.errors import UsageError
from builder.publish.cache import changed_meanwhile
from builder.publish.manifest import PART_BYTES_MAX, part_path

PART_BYTES_DEFAULT = 8 * 1024 * 1024
PART_BYTES_MIN = 4 * 1024  # Smaller parts cost more in requests and in the manifest than in bytes.
UNITS = {"": 1, "KiB": 1024, "MiB": 1024 * 1024}


@dataclass(frozen=True)
class PartSource:
    """One part, still inside the file that it is cut from."""

    origin: Path
    offset: int
    byte_count: int
    sha256: str

    @property
    def path(self) -> str:
        """Where it lies on the site."""
        return part_path(self.sha256)

    def read(self) -> bytes:
        """The part's bytes. Raises RefusedError if the file was changed since it was cut."""
        with self.origin.open("rb") as file:
            file.seek(self.offset)
            data = file.read(self.byte_count)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise changed_meanwhile(self.origin)
        return data


def parse_part_size(text: str) -> int:
    """`8MiB`, `512KiB` or a number of bytes. Raises UsageError outside of 4 KiB to 25 MiB."""
    match = re.fullmatch(r"([0-9]{1,12})(KiB|MiB|)", text)
    byte_count = int(match[1]) * UNITS[match[2]] if match else 0
    if not PART_BYTES_MIN <= byte_count <= PART_BYTES_MAX:
        raise UsageError(
            f"--part-size: is {text}, must be 4KiB to 25MiB, such as 8MiB; some hosts refuse larger files"
        )
    return byte_count


def cut(origin: Path, part_bytes: int) -> list[PartSource]:
    """All of a file in order, each part `part_bytes` long but the last."""
    parts: list[PartSource] = []
    offset = 0
    with origin.open("rb") as file:
        while data := file.read(part_bytes):
            parts.append(PartSource(origin, offset, len(data), hashlib.sha256(data).hexdigest()))
            offset += len(data)
    return parts
