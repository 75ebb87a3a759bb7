"""What earlier runs of `pack` made, kept by what it was made from.

Owns: a folder of `keys/<hash of the ingredients>.json` and `objects/<sha256>`. An object is hashed before it
is used again, so a damaged cache costs time and nothing else. Knows nothing of: what is made, and how.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RefusedError
from builder.files import write_whole
from builder.publish.canonical import Json, canonical_sha256

FOLDER_NAME = ".saguaro-cache"


@dataclass(frozen=True)
class Made:
    """One made file, and facts about it that cost time to find out."""

    path: Path
    byte_count: int
    sha256: str
    facts: dict[str, float]

    def read(self) -> bytes:
        """The bytes. Raises RefusedError if they are no longer those that were hashed."""
        data = self.path.read_bytes()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise changed_meanwhile(self.path)
        return data


def changed_meanwhile(path: Path) -> RefusedError:
    """What to say of an input that was written to while it was being packed."""
    return RefusedError(f"{path}: was changed while it was packed; run pack again", code="input_changed")


class Cache:
    """Safe for several threads, and for several processes: names are content, and files appear whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._used: set[str] = set()
        (folder / "keys").mkdir(parents=True, exist_ok=True)
        (folder / "objects").mkdir(exist_ok=True)
        write_whole(folder / ".gitignore", b"*\n")

    def get(self, ingredients: Json) -> Made | None:
        """What was made of these, if it is still there and still what it was."""
        key_path = self._key_path(ingredients)
        try:
            entry = json.loads(key_path.read_bytes())
            path = self.folder / "objects" / entry["sha256"]
            data = path.read_bytes()
            made = Made(path, len(data), hashlib.sha256(data).hexdigest(), dict(entry["facts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if made.sha256 != entry["sha256"]:
            path.unlink(missing_ok=True)
            return None
        self._mark_used(key_path, path)
        return made

    def put(self, ingredients: Json, data: bytes, facts: dict[str, float]) -> Made:
        """Keep what was made."""
        made_hash = hashlib.sha256(data).hexdigest()
        path = self.folder / "objects" / made_hash
        write_whole(path, data)
        entry = {"sha256": made_hash, "facts": facts}
        key_path = self._key_path(ingredients)
        write_whole(key_path, json.dumps(entry).encode())
        self._mark_used(key_path, path)
        return Made(path, len(data), made_hash, facts)

    def prune(self) -> None:
        """Forget unused objects, oldest first, until they take no more room than those that were used."""
        objects = sorted((self.folder / "objects").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        used_bytes = sum(path.stat().st_size for path in objects if path.name in self._used)
        unused = [path for path in objects if path.name not in self._used]
        unused_bytes = sum(path.stat().st_size for path in unused)
        for path in unused:
            if unused_bytes <= used_bytes:
                break
            unused_bytes -= path.stat().st_size
            path.unlink(missing_ok=True)
        kept = {path.name for path in (self.folder / "objects").iterdir()}
        for key_path in (self.folder / "keys").iterdir():
            if _object_name(key_path) not in kept:
                key_path.unlink(missing_ok=True)

    def _key_path(self, ingredients: Json) -> Path:
        return self.folder / "keys" / f"{canonical_sha256(ingredients)}.json"

    def _mark_used(self, *paths: Path) -> None:
        for path in paths:
            os.utime(path)
            self._used.add(path.name)


def _object_name(key_path: Path) -> str:
    try:
        return str(json.loads(key_path.read_bytes())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
