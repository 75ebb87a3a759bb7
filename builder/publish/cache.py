"""What earlier runs of `pack` made, kept by what it was made from.

Owns: a folder of `keys/<hash of the ingredients>.json` and `objects/<sha256>`, and its mark: no other folder
is written to, and no file of another name removed. An object is hashed before it is used again, so a damaged
cache costs time and nothing else. Knows nothing of: what is made, and how.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import RefusedError, refusal
from builder.files import check_folder, load_json, read_regular, write_whole
from builder.publish.canonical import Json, canonical_sha256
from builder.publish.lock import locked

FOLDER_NAME = ".saguaro-cache"
MARK = "CACHEDIR.TAG"
# The first line is what backup programs look for (https://bford.info/cachedir/).
MARK_TEXT = b"""\
Signature: 8a477f597d28d172789f06886806bc55
# This folder was made by saguaro pack; it may be deleted.
"""
KEY_BYTES_MAX = 4096
OBJECT_NAME = re.compile(r"[0-9a-f]{64}")
KEY_NAME = re.compile(r"[0-9a-f]{64}\.json")


@dataclass(frozen=True)
class Made:
    """One made file, and facts about it that cost time to find out."""

    path: Path
    byte_count: int
    sha256: str
    facts: dict[str, float]

    def read(self) -> bytes:
        """The bytes. Raises RefusedError if they are no longer those that were hashed."""
        data = read_regular(self.path)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise changed_meanwhile(self.path)
        return data


def changed_meanwhile(path: Path) -> RefusedError:
    """What to say of an input that was written to while it was being packed."""
    return RefusedError(f"{path}: was changed while it was packed; run pack again", code="input_changed")


class Cache:
    """Safe for several threads, and for several processes: names are content, and files appear whole."""

    def __init__(self, folder: Path) -> None:
        _require_cache(folder)
        self.folder = folder
        self._used: set[str] = set()
        (folder / "keys").mkdir(parents=True, exist_ok=True)
        (folder / "objects").mkdir(exist_ok=True)
        for name, text in ((MARK, MARK_TEXT), (".gitignore", b"*\n")):
            if not os.path.lexists(folder / name):
                write_whole(folder / name, text)

    def in_use(self) -> AbstractContextManager[bool]:
        """While the `with` block lasts nobody prunes."""
        return locked(self.folder, shared=True)

    def get(self, ingredients: Json, facts: Collection[str] = ()) -> Made | None:
        """What was made of these, with these facts, if it is still there and still what it was."""
        key_path = self._key_path(ingredients)
        entry = _read_entry(key_path)
        if entry is None or set(entry["facts"]) != set(facts):
            return None
        path = self.folder / "objects" / entry["sha256"]
        try:
            data = read_regular(path)
        except RefusedError:
            return None
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            path.unlink(missing_ok=True)
            return None
        self._mark_used(key_path, path)
        return Made(path, len(data), entry["sha256"], entry["facts"])

    def put(self, ingredients: Json, data: bytes, facts: dict[str, float]) -> Made:
        """Keep what was made."""
        made_hash = hashlib.sha256(data).hexdigest()
        path = self.folder / "objects" / made_hash
        write_whole(path, data)
        key_path = self._key_path(ingredients)
        entry = {"sha256": made_hash, "facts": facts, "seal": _seal(key_path, made_hash, facts)}
        write_whole(key_path, json.dumps(entry).encode())
        self._mark_used(key_path, path)
        return Made(path, len(data), made_hash, facts)

    def prune(self) -> None:
        """Forget unused objects, oldest first, until they take no more room than those that were used.

        Nothing is forgotten while another pack uses the cache.
        """
        with locked(self.folder) as alone:
            if alone:
                self._prune()

    def _prune(self) -> None:
        objects = sorted(self._files("objects", OBJECT_NAME), key=lambda path: path.stat().st_mtime_ns)
        used_bytes = sum(path.stat().st_size for path in objects if path.name in self._used)
        unused = [path for path in objects if path.name not in self._used]
        unused_bytes = sum(path.stat().st_size for path in unused)
        for path in unused:
            if unused_bytes <= used_bytes:
                break
            unused_bytes -= path.stat().st_size
            path.unlink(missing_ok=True)
        kept = {path.name for path in self._files("objects", OBJECT_NAME)}
        for key_path in self._files("keys", KEY_NAME):
            entry = _read_entry(key_path)
            if entry is None or entry["sha256"] not in kept:
                key_path.unlink(missing_ok=True)

    def _files(self, folder: str, name: re.Pattern[str]) -> list[Path]:
        """The files that `put` wrote: regular and named as it names them."""
        found = (self.folder / folder).iterdir()
        return [path for path in found if name.fullmatch(path.name) and _is_regular(path)]

    def _key_path(self, ingredients: Json) -> Path:
        return self.folder / "keys" / f"{canonical_sha256(ingredients)}.json"

    def _mark_used(self, *paths: Path) -> None:
        for path in paths:
            os.utime(path)
            self._used.add(path.name)


def _require_cache(folder: Path) -> None:
    """Raise RefusedError for a folder that holds anything, and not the mark of a cache or its usual name."""
    check_folder(folder)
    if not folder.is_dir() or folder.name == FOLDER_NAME or not any(folder.iterdir()):
        return
    try:
        is_marked = read_regular(folder / MARK, len(MARK_TEXT)) == MARK_TEXT
    except RefusedError:
        is_marked = False
    if not is_marked:
        found, allowed = "a folder with other files", "new, empty or an earlier cache of pack"
        sentence = refusal(folder, "--cache", found=found, allowed=allowed, next_step="choose another folder")
        raise RefusedError(sentence, code="not_a_cache")


def _read_entry(key_path: Path) -> dict[str, Any] | None:
    """A key file as `put` wrote it, None for anything else: facts are shares, and a seal proves them."""
    try:
        entry = load_json(read_regular(key_path, KEY_BYTES_MAX), key_path)
    except RefusedError:
        return None
    match entry:
        case {"sha256": str(sha256), "facts": dict(facts), "seal": str(seal)}:
            shares = all(isinstance(fact, float) and 0 <= fact <= 1 for fact in facts.values())
            sound = OBJECT_NAME.fullmatch(sha256) and shares and seal == _seal(key_path, sha256, facts)
            return entry if sound else None
    return None


def _seal(key_path: Path, sha256: str, facts: dict[str, float]) -> str:
    text = json.dumps([key_path.name, sha256, facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
