"""The Python readers of strangers' bytes as targets: each takes any bytes, and lets only our own errors pass.

Owns: what is called on an input, and the inputs to start from. Knows nothing of: what mutates them, which is
atheris (run_reader.py) or a test without it (test_readers.py). docs/fuzzing.md has the commands.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from builder.cact.layout import Kind
from builder.cact.reader import read_container
from builder.cact.show_command import diffable, document, summary
from builder.delta import delta_command, inspect_patch, layout
from builder.errors import ContainerError, ManifestError, PackageError, PatchError
from builder.experts import ExpertPackage
from builder.experts.metadata import Features
from builder.experts.package import ExpertBinding
from builder.experts.payloads import LowRankDelta
from builder.experts.router_heads import AffineRouterHead
from builder.publish.manifest import read_manifest
from tests.publish.hostile_manifests import good_text, seal_text

GOLDEN = Path(__file__).parents[1] / "golden"
PACKAGE_FILES = ("package.json", "routers.safetensors", "payloads/p.safetensors", "package.toml")
WIDTH, RANK = 3, 2


def fuzz_container(data: bytes) -> None:
    """A `.cact` file: read, decode every tensor, show it in all forms."""
    try:
        container = read_container(data)
    except ContainerError:
        return
    for record in container.records:
        if record.kind is not Kind.RAW:
            assert container.tensor(record.name).shape == record.shape
    assert list(summary(container))
    assert list(diffable(container))
    json.dumps(document(container))


def fuzz_patch(data: bytes) -> None:
    """A patch whose header's check is made good: look into it, and show that as a table and as JSON."""
    checked = layout.HEADER_CHECKED_BYTES
    sealed = data[:checked] + hashlib.sha256(data[:checked]).digest()[:4] + data[checked + 4 :]
    try:
        report = inspect_patch(sealed if len(data) > checked else data)
    except PatchError:
        return
    assert sum(report.bytes_by_part.values()) == len(data)
    delta_command._table(report)
    json.dumps(delta_command._document(report))


def fuzz_manifest(data: bytes) -> None:
    """A `family.json`: as it is, and with a true release hash."""
    sealed = seal_text(data.decode("utf-8", "replace"))
    for text in (data, sealed):
        with contextlib.suppress(ManifestError):
            read_manifest(text)


def fuzz_package(data: bytes) -> None:
    """An expert package in which one file is the input: u8 which, then its bytes."""
    if not data:
        return
    with tempfile.TemporaryDirectory() as folder:
        name = PACKAGE_FILES[data[0] % len(PACKAGE_FILES)]
        directory = Path(folder) / "p"
        make_package().save(directory)
        if name == "package.toml":
            (directory / "package.json").unlink()
        (directory / name).write_bytes(data[1:])
        with contextlib.suppress(PackageError):
            ExpertPackage.from_directory(directory).check_unchanged()


def make_package() -> ExpertPackage:
    """One expert, a low-rank delta, in one layer."""
    down, up = torch.ones(RANK, WIDTH), torch.ones(WIDTH, RANK)
    head = AffineRouterHead("x", torch.ones(WIDTH), torch.ones(()))
    return ExpertPackage(
        name="p",
        features=Features(width=WIDTH),
        payloads={"p": LowRankDelta({"down.weight": down, "up.weight": up}, "silu", 1.5)},
        bindings=[ExpertBinding(1, "x", "p")],
        router_heads={1: [head]},
    )


def _files(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(GOLDEN.glob(pattern))]


def _package_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        make_package().save(Path(folder) / "p")
        written = [(Path(folder) / "p" / name).read_bytes() for name in PACKAGE_FILES[:3]]
    toml = b'format = "saguaro-expert-package"\nversion = 1\nname = "p"\n[mode]\nkind = "pair_top2"\n'
    return [bytes([which]) + data for which, data in enumerate([*written, toml])]


READERS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "container": (fuzz_container, lambda: _files("*.cact")),
    "patch": (fuzz_patch, lambda: _files("patches/*.patch")),
    "manifest": (fuzz_manifest, lambda: [good_text().encode()]),
    "package": (fuzz_package, _package_files),
}
"""Name -> what takes an input, and the inputs to start from."""
