"""The wheel: the same bytes from any folder, and enough to pack the demo without any extra."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCES = ("builder", "engine", "web", "examples", "docs", "pyproject.toml", "README.md", "LICENSE")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "node_modules", "*.wasm", ".saguaro-cache")
OFFLINE = ("--no-build-isolation", "--no-deps", "--no-index")
FRONT_ENDS = {
    "pip": [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "-w",
        "out",
        ".",
    ],
    "hatchling": ["-m", "hatchling", "build", "-t", "wheel", "-d", "out"],
}


def copy_sources(folder: Path) -> Path:
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_SOURCES)
        else:
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def build_wheel(sources: Path, folder: Path, front_end: str) -> Path:
    shutil.copytree(sources, folder)
    subprocess.run([sys.executable, *FRONT_ENDS[front_end]], cwd=folder, check=True, capture_output=True)
    (wheel,) = (folder / "out").glob("*.whl")
    return wheel


def needed(requirements: list[str], seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """The distributions that these requirements install, extras left out."""
    for requirement in map(Requirement, requirements):
        name = requirement.name.lower()
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        yield distribution
        yield from needed(distribution.requires or [], seen)


def install(wheel: Path, folder: Path) -> None:
    """What `pip install WHEEL` puts into an empty environment; packages that are here already as links."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (metadata,) = folder.glob("*.dist-info")
    requires = importlib.metadata.PathDistribution(metadata).requires or []
    for distribution in needed(requires, set()):
        for top in {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}:
            (folder / top).symlink_to(distribution.locate_file(top))


@pytest.mark.slow
def test_wheel_is_reproducible_and_packs_the_demo_without_torch(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    wheel = build_wheel(sources, tmp_path / "a", "pip")
    other = build_wheel(sources, tmp_path / "another" / "folder", "hatchling")
    assert wheel.read_bytes() == other.read_bytes()

    packages = tmp_path / "packages"
    install(wheel, packages)
    installed = sorted(packages.rglob("*"))
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", *words]  # -S: nothing of this environment but what was linked
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert "No module named 'torch'" in python("-c", "import torch").stderr
    words = ("--out", "site", "--effort", "0", "--numerics", "fast")  # which takes all modules
    packed = python("-m", "builder", "pack", *words)
    assert (packed.returncode, "6 models" in packed.stderr) == (0, True), packed.stderr
    verified = python("-m", "builder", "verify", "site")
    assert verified.stderr.splitlines()[-1].endswith("6 models, 6 parts, 0 mismatches")
    assert sorted(packages.rglob("*")) == installed
