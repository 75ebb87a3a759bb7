"""Files of strangers: read with a bound, parsed without surprise, written whole or not at all.

Owns: what may be read and written at all, the temporary name beside the final one, the sentences for what
fails, the line that tells of an artifact. Knows nothing of: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from builder.errors import RefusedError, refusal

FILE_BYTES_MAX = 2**32 - 1
"""No file of a family is larger: a model must fit a 32-bit WebAssembly memory."""
SHORT_HASH = 12
"""Hex digits of a hash in output for people."""
LFS_POINTER = b"version https://git-lfs"
WRITING = re.compile(r"\.[0-9]+-[0-9]+\.writing$")


def read_regular(
    path: Path, bytes_max: int = FILE_BYTES_MAX, *, error: type[RefusedError] = RefusedError
) -> bytes:
    """The bytes of a regular file.

    Raises `error`: `unreadable` (missing, a folder, a pipe, a device, changing), `too_large`, `lfs_pointer`.
    """
    size = regular_size(path, error=error)
    if size > bytes_max:
        sentence = refusal(path, "size", found=f"{size} bytes", allowed=f"at most {bytes_max} bytes")
        raise error(sentence, code="too_large")
    try:
        with path.open("rb") as file:
            data = file.read(size + 1)
    except OSError as failure:
        raise error(f"{path}: cannot be read: {reason_of(failure)}", code="unreadable") from None
    if len(data) != size:
        raise error(f"{path}: cannot be read: it changes while it is read", code="unreadable")
    if data.startswith(LFS_POINTER):
        sentence = f"{path}: is a Git LFS pointer, not the file; fetch the file with: git lfs pull"
        raise error(sentence, code="lfs_pointer")
    return data


def regular_size(path: Path, *, error: type[RefusedError] = RefusedError) -> int:
    """The size in bytes of what is a regular file. Raises `error` (`unreadable`) for anything else."""
    try:
        status = path.stat()
    except OSError as failure:
        raise error(f"{path}: cannot be read: {reason_of(failure)}", code="unreadable") from None
    except ValueError:
        raise error(f"{str(path)!r}: cannot be read: no file can have this name", code="unreadable") from None
    if not stat.S_ISREG(status.st_mode):  # Opening a pipe would wait for ever.
        raise error(f"{path}: cannot be read: is {kind_of(status)}, not a file", code="unreadable")
    return status.st_size


def load_json(
    data: bytes, source: object, *, error: type[RefusedError] = RefusedError, code: str = "bad_json"
) -> Any:
    """The value of a JSON text in UTF-8, with or without a byte order mark.

    Raises `error` with `code` for anything else, and for what languages read differently: a key that stands
    twice, NaN, infinities, numbers beyond a double, nesting deeper than the parser goes.
    """
    try:
        return json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_unique_keys,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_within_double,
        )
    except RecursionError:
        found = "nested too deeply"
    except ValueError as failure:
        found = f"not JSON ({failure})" if data else "empty"
    raise error(refusal(source, "document", found=found, allowed="JSON"), code=code)


def check_target(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise RefusedError (`bad_target`) if `write_whole` must not, or cannot, write here: call this first.

    A folder, pipe or device is no target, nor is one of the `inputs`, nor a place in a folder that is not
    there or may not be written.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        status = None
    except OSError as failure:
        raise _not_writable(path, reason_of(failure)) from None
    except ValueError:
        raise _not_writable(repr(str(path)), "no file can have this name") from None
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise _not_writable(path, f"is {kind_of(status)}, not a file")
    for source in inputs:
        if status is not None and source.exists() and os.path.samestat(status, source.stat()):
            raise _not_writable(path, f"is the same file as {source}, which is read")
    if not path.parent.is_dir():
        raise _not_writable(path, f"{path.parent} is no folder")
    if not os.access(path.parent, os.W_OK):
        raise _not_writable(path, f"{path.parent} may not be written")


def check_folder(path: Path) -> None:
    """Raise RefusedError (`bad_target`) if this is no folder and none can be made here: call this first."""
    try:
        place = path
        while not os.path.lexists(place):
            place = place.parent
        if not place.is_dir():
            what = "a link to nothing" if place.is_symlink() and not place.exists() else kind_of(place.stat())
            raise _not_writable(path, f"{place} is {what}, not a folder")
    except OSError as failure:
        raise _not_writable(path, reason_of(failure)) from None
    except ValueError:
        raise _not_writable(repr(str(path)), "no folder can have this name") from None
    if not os.access(place, os.W_OK):
        raise _not_writable(path, f"{place} may not be written")


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it is, at every moment, as before or complete; nothing else stays.

    Raises RefusedError (`bad_target`) as `check_target` does, and with the reason (the disk is full, ...).
    """
    check_target(path)
    writing = _writing(path)
    try:
        writing.write_bytes(data)
        os.replace(writing, path)
    except OSError as failure:
        raise _not_writable(path, reason_of(failure)) from failure
    finally:
        with contextlib.suppress(OSError):  # The first failure is the one to tell.
            writing.unlink()


def try_target(path: Path) -> None:
    """As `check_target`, and by what rights do not tell: a file is made there for a moment."""
    check_target(path)
    try:
        _writing(path).touch()
        _writing(path).unlink()
    except OSError as failure:
        raise _not_writable(path, reason_of(failure)) from None


def _writing(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.writing")


def artifact_line(name: object, byte_count: int, sha256: str) -> str:
    """What every command says of one file or model that it made or proved: name (path or id), size, hash."""
    return f"{name}  {byte_count:,} bytes  {sha256[:SHORT_HASH]}"


def final_name(name: str) -> str:
    """The name that a file left by a killed `write_whole` would have got; any other name as it is."""
    return WRITING.sub("", name)


def kind_of(status: os.stat_result) -> str:
    """What is there, in two words."""
    if stat.S_ISDIR(status.st_mode):
        return "a folder"
    if stat.S_ISREG(status.st_mode):
        return "a file"
    return "a pipe" if stat.S_ISFIFO(status.st_mode) else "a device"


def reason_of(failure: OSError) -> str:
    """The system's reason, as it stands in the middle of a sentence."""
    return (failure.strerror or "unreadable").lower()


def _not_writable(path: object, reason: str) -> RefusedError:
    return RefusedError(f"{path}: cannot be written: {reason}", code="bad_target")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _within_double(text: str) -> int:
    _finite(text)
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is beyond every number")
    return value
