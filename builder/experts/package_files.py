"""Reading the files of an expert package: bounded, inside the directory, and checked before use.

Owns: paths and sizes, which metadata file, tensors out of safetensors bytes, writing a directory whole.
Does not know: what the tensors are for.
Source: docs/experts.md, "The package on disk".
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import safetensors
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from builder.experts.metadata import JSON_NAME, METADATA_BYTES_MAX, TOML_NAME, refuse, short

PACKAGE_BYTES_MAX = 4 * 1024**3
STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class PackageDirectory:
    """A directory whose files are read once each, up to a number of bytes in all."""

    def __init__(self, path: Path, *, bytes_max: int = PACKAGE_BYTES_MAX) -> None:
        if not path.is_dir():
            refuse("directory", path, "path", found="not a directory", allowed="a directory")
        self.path = path
        self._bytes_left = bytes_max

    def metadata_name(self) -> str:
        """`package.json` or `package.toml`, whichever is there."""
        found = [name for name in (JSON_NAME, TOML_NAME) if os.path.lexists(self.path / name)]
        if len(found) != 1:
            what = "both there" if found else "missing"
            refuse(
                "metadata_file", self.path, f"{JSON_NAME} or {TOML_NAME}", found=what, allowed="one of them"
            )
        return found[0]

    def read_metadata(self) -> tuple[str, bytes]:
        """The metadata file's name and bytes."""
        name = self.metadata_name()
        return name, self._read(name, METADATA_BYTES_MAX)

    def read_tensors(
        self, relative: str, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """The tensors of a safetensors file, which must hold exactly these, of this dtype, all finite."""
        return parse_tensors(self._read(relative, self._bytes_left), self.path / relative, shapes, dtype)

    def _read(self, relative: str, bytes_max: int) -> bytes:
        path = self._inside(relative)
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
                refuse("file", path, "file", found="not a regular file", allowed="a regular file")
            size = status.st_size
            if size > bytes_max:
                allowed = f"at most {bytes_max} bytes"
                refuse("too_large", path, "size", found=f"{size} bytes", allowed=allowed)
            with path.open("rb") as file:
                data = file.read(size + 1)
        except OSError as error:
            refuse("file", path, "file", found=f"unreadable ({error.strerror})", allowed="a readable file")
        if len(data) != size:
            refuse("file", path, "size", found="changing while it is read", allowed="at rest")
        self._bytes_left -= size
        return data

    def _inside(self, relative: str) -> Path:
        """The path, if it stays in the directory after all links are followed."""
        parts = PurePosixPath(relative).parts
        joined = self.path.joinpath(*parts)
        try:
            inside = joined.resolve().is_relative_to(self.path.resolve())
        except (OSError, RuntimeError):  # a loop of links
            inside = False
        if not inside or "\\" in relative or ".." in parts or relative.startswith("/"):
            refuse("path", self.path, "file", found=short(relative), allowed="a path inside the package")
        return joined


def parse_tensors(
    data: bytes, source: object, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Tensors by name, in the order of `shapes`; none is made before all names, dtypes and shapes agree."""
    try:
        stored = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        refuse("tensors", source, "file", found=f"not safetensors ({error})", allowed="a safetensors file")
    for name in shapes:
        if name not in stored:
            refuse("missing_tensor", source, name, found="missing", allowed="in the file")
    for name, entry in stored.items():
        if name not in shapes:
            refuse("unknown_tensor", source, short(name), found="not declared", allowed="left out")
        if STORED_DTYPES.get(entry["dtype"]) != dtype:
            refuse("wrong_dtype", source, name, found=entry["dtype"], allowed=dtype_name(dtype))
        if tuple(entry["shape"]) != shapes[name]:
            found, allowed = tuple(entry["shape"]), f"{shapes[name]}, as declared"
            refuse("wrong_shape", source, name, found=found, allowed=allowed)
    tensors = {
        name: torch.frombuffer(stored[name]["data"], dtype=dtype).reshape(shape)
        for name, shape in shapes.items()
    }
    check_finite(tensors, source)
    return tensors


def check_finite(tensors: Mapping[str, Tensor], source: object) -> None:
    """Raise PackageError (package_not_finite) for the first tensor that holds NaN or an infinity."""
    for name, tensor in tensors.items():
        bad = int(tensor.numel() - tensor.isfinite().sum())
        if bad:
            refuse("not_finite", source, name, found=f"NaN or infinite at {bad} places", allowed="finite")


def write_directory(path: Path, metadata: bytes, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write a package so that `path` is absent or complete. Raises PackageError where it is taken."""
    if os.path.lexists(path):
        refuse("exists", path, "path", found="there already", allowed="a new name")
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for relative, tensors in files.items():
            target = writing / relative
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(save_tensors({name: t.contiguous() for name, t in tensors.items()}))
        (writing / JSON_NAME).write_bytes(metadata)
        writing.chmod(0o755)  # mkdtemp makes it private
        writing.rename(path)
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
