"""The site's folder on disk: which names are ours, and how one release takes another's place.

Owns: refusing folders that hold something else, writing in an order that leaves no moment without a whole
site, undoing a failed write, keeping the release before, removing older ones.
Knows nothing of: how the files were made. Source: docs/publish.md, "Packing again".
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import ManifestError, RefusedError, refusal
from builder.files import check_folder, final_name, read_regular, write_whole
from builder.publish.lock import locked
from builder.publish.manifest import MANIFEST_BYTES_MAX, Manifest, read_manifest
from builder.publish.pages import INDEX, SERVICE_WORKER, is_sealed
from builder.publish.parts import PartSource

MANIFEST = "family.json"
PREVIOUS = "previous.json"
# The manifest comes last: until it is in place the old release is the one that counts.
REPLACED_IN_ORDER = (PREVIOUS, SERVICE_WORKER, INDEX, MANIFEST)
IMMUTABLE = re.compile(r"parts/[0-9a-f]{64}\.bin|engine\.[0-9a-f]{12}\.wasm|app/[0-9a-f]{12}/.+")


@dataclass
class Written:
    """What one `write_release` did, in files."""

    new: int = 0
    kept: int = 0
    removed: int = 0
    _added: list[Path] = field(default_factory=list)
    _replaced: list[tuple[Path, Path]] = field(default_factory=list)
    """A file, and another name under which its bytes of before are kept."""


def is_ours(path: str) -> bool:
    """Whether `pack` made, and may remove, a file of this name; everything else in a site is left alone."""
    name = final_name(path)
    return name in REPLACED_IN_ORDER or IMMUTABLE.fullmatch(name) is not None


def site_files(folder: Path) -> list[str]:
    """The files of a site by path, sorted, without names that start with a dot (.git, .nojekyll)."""
    found = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not any(step.startswith(".") for step in name.split("/")):
            found.append(name)
    return sorted(found)


def read_present(folder: Path) -> bytes | None:
    """The manifest of the release in `folder`, None for a new site.

    Raises RefusedError for a folder that holds anything but a site: `pack` replaces and removes files there.
    """
    if folder.exists() and not folder.is_dir():
        raise RefusedError(refusal(folder, "--out", found="a file", allowed="a folder"))
    check_folder(folder)
    _require_no_folders(folder, REPLACED_IN_ORDER)
    if (folder / MANIFEST).exists():
        try:
            data = read_regular(folder / MANIFEST, MANIFEST_BYTES_MAX, error=ManifestError)
            read_manifest(data, folder / MANIFEST)
        except ManifestError as error:
            raise RefusedError(f"{error}; remove {folder} or choose another --out", code=error.code) from None
        return data
    names = site_files(folder) if folder.is_dir() else []
    strange = [name for name in names if not is_ours(name)]
    if INDEX in names and not is_sealed((folder / INDEX).read_bytes()):
        strange.insert(0, INDEX)
    if strange:
        found = f"a folder that holds {strange[0]} and no {MANIFEST}"
        raise RefusedError(
            refusal(
                folder,
                "--out",
                found=found,
                allowed="new, empty or a site",
                next_step="choose another folder",
            )
        )
    return None


def write_release(
    folder: Path,
    immutable: Mapping[str, bytes | PartSource],
    replaced: Mapping[str, bytes],
    *,
    keep_previous: bool,
) -> Written:
    """Put a release in place: first what is new, then the files that are replaced, then remove what is stale.

    On any failure, an interruption included, the folder is as it was. Raises RefusedError, with nothing
    changed, if another pack is writing there.
    """
    with _folder_alone(folder):
        present = read_present(folder)
        replaced = dict(replaced)
        previous = _previous(folder, present, replaced[MANIFEST]) if keep_previous else None
        if previous is not None:
            replaced[PREVIOUS] = previous
        _require_no_folders(folder, immutable)
        written = _put(folder, immutable, replaced)
        kept = {*immutable, *replaced, *(files_of(folder, read_manifest(previous)) if previous else ())}
        stale = [path for path in site_files(folder) if is_ours(path) and path not in kept]
        written.removed = _remove(folder, stale)
    return written


def files_of(folder: Path, manifest: Manifest) -> list[str]:
    """Every immutable file that belongs to a release: parts, engine, and what lies in its app folder."""
    parts = [part.path for part in manifest.parts]
    app = [path for path in site_files(folder) if path.startswith(manifest.app.path + "/")]
    return list(dict.fromkeys([*parts, *(module.path for module in manifest.engine.modules), *app]))


def _previous(folder: Path, present: bytes | None, coming: bytes) -> bytes | None:
    """The manifest to keep for open tabs: of the release before, not of the same one packed again."""
    if present is None:
        return None
    if read_manifest(present).release != read_manifest(coming).release:
        return present
    try:
        data = (folder / PREVIOUS).read_bytes()
        read_manifest(data)
    except (OSError, ManifestError):
        return None
    return data


@contextmanager
def _folder_alone(folder: Path) -> Iterator[None]:
    """The folder, made if need be and locked; what was made goes again if nothing comes to lie in it."""
    check_folder(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder) as alone:
            if not alone:
                raise RefusedError(f"{folder}: another pack is writing there; wait for it", code="busy")
            yield
    finally:
        with suppress(OSError):  # Not empty: it is needed.
            for path in made:
                path.rmdir()


def _require_no_folders(folder: Path, paths: Iterable[str]) -> None:
    """Raise RefusedError for what lies, and is no file, where a file is to be written."""
    for path in paths:
        if (folder / path).exists() and not (folder / path).is_file():
            step = "remove it or choose another --out"
            raise RefusedError(
                refusal(folder / path, "path", found="no file", allowed="a file or nothing", next_step=step)
            )


def _put(folder: Path, immutable: Mapping[str, bytes | PartSource], replaced: Mapping[str, bytes]) -> Written:
    written = Written()
    try:
        for path, content in immutable.items():
            _place(folder, path, content if isinstance(content, bytes) else content.read(), written)
        for path in REPLACED_IN_ORDER:
            if path in replaced:
                _place(folder, path, replaced[path], written)
    except BaseException:
        _roll_back(written, folder)
        raise
    finally:
        for _, kept in written._replaced:
            kept.unlink(missing_ok=True)
    return written


def _place(folder: Path, path: str, data: bytes, written: Written) -> None:
    target = folder / path
    if target.is_file():
        if target.stat().st_size == len(data) and target.read_bytes() == data:
            written.kept += 1
            return
        _keep(target, written)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        written._added.append(target)
    write_whole(target, data)
    written.new += 1


def _keep(target: Path, written: Written) -> None:
    """Give the bytes that are to be replaced a second name, so that putting them back needs no room."""
    # If this process is killed, the next pack takes it for one of write_whole's.
    kept = target.with_name(f"{target.name}.{os.getpid()}-0.writing")
    kept.unlink(missing_ok=True)
    try:
        os.link(target, kept)
    except OSError:  # A file system without links.
        try:
            shutil.copyfile(target, kept)
        except BaseException:
            kept.unlink(missing_ok=True)
            raise
    written._replaced.append((target, kept))


def _roll_back(written: Written, folder: Path) -> None:
    """First what is new goes, which makes room; one file that resists does not keep the others."""
    for target in written._added:
        with suppress(OSError):
            target.unlink(missing_ok=True)
    for target, kept in written._replaced:
        with suppress(OSError):
            os.replace(kept, target)
    with suppress(OSError):
        _remove_empty_folders(folder)


def _remove(folder: Path, paths: list[str]) -> int:
    for path in paths:
        (folder / path).unlink()
    _remove_empty_folders(folder)
    return len(paths)


def _remove_empty_folders(folder: Path) -> None:
    for name in ("app", "parts"):
        for path in sorted((folder / name).rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if (folder / name).is_dir() and not any((folder / name).iterdir()):
            (folder / name).rmdir()
