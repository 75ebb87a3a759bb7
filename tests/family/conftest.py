"""Small families, shared by this room's tests: one that upstream wrote, and the demo's first layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.cact.sentencepiece_model import read_sentencepiece
from builder.cact.tokenizer import pack_tokenizer
from builder.family.adapter import read_adapter
from builder.family.checkpoint import read_checkpoint
from builder.family.export import CheckpointExporter
from builder.family.family import Family, load_family
from builder.family.settings import FamilyTable
from tests.conftest import DEMO
from tests.family import upstream
from tests.made_once import MadeOnce


@dataclass(frozen=True)
class UpstreamFiles:
    checkpoint: Path
    adapter: Path


@pytest.fixture(scope="session")
def upstream_files(made_once: MadeOnce) -> UpstreamFiles:
    """A tiny model with all three heads, and an adapter for it."""

    def write(folder: Path) -> None:
        folder.mkdir()
        checkpoint = upstream.write_checkpoint(folder / "tiny.safetensors")
        upstream.write_adapter(folder / "tiny.lora.safetensors", checkpoint)

    folder = made_once("upstream", write)
    return UpstreamFiles(folder / "tiny.safetensors", folder / "tiny.lora.safetensors")


SHALLOW = """[family]
name = "shallow"
title = "Shallow"
tokenizer = "DEMO/tokenizer.model"
layers = 2
[base]
checkpoint = "DEMO/base.safetensors"
[router]
adapter = "DEMO/router.lora.safetensors"
"""


@pytest.fixture(scope="session")
def shallow_family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """The demo's base and router at two layers: exported in a tenth of a second."""
    path = tmp_path_factory.mktemp("shallow") / "family.toml"
    path.write_text(SHALLOW.replace("DEMO", str(DEMO.absolute())), encoding="utf-8")
    return load_family(path)


@pytest.fixture(scope="session")
def tokenizer_blob() -> bytes:
    return pack_tokenizer(read_sentencepiece(upstream.TOKENIZER))


@pytest.fixture(scope="session")
def export(tokenizer_blob: bytes):
    """export(checkpoint, adapter=None, **keys of [family]) -> the container's bytes."""

    def run(checkpoint: Path, adapter: Path | None = None, **keys: object) -> bytes:
        settings = FamilyTable(name="tiny", title="Tiny", **keys)
        exporter = CheckpointExporter(read_checkpoint(checkpoint), settings, tokenizer_blob)
        return exporter.export(read_adapter(adapter) if adapter else None)

    return run
