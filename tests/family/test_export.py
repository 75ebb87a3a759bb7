"""Exports as files: what they depend on, what is left behind."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys

import pytest

from builder.cact import layout
from builder.cact.reader import read_container
from builder.errors import FamilyError, RefusedError
from builder.family.export import Exporters, export_family, export_member
from builder.family.family import load_family


@pytest.mark.slow
def test_one_member_alone_equals_the_same_member_of_the_family(shallow_family, tmp_path):
    _, router = export_family(shallow_family, tmp_path)
    assert export_member(shallow_family, "router") == router.read_bytes()


@pytest.mark.slow
def test_the_bytes_depend_neither_on_the_blas_nor_on_its_threads(shallow_family, tmp_path):
    # Upstream's own export of these files differs between these two settings.
    environment = os.environ | {"OPENBLAS_CORETYPE": "Sandybridge", "OPENBLAS_NUM_THREADS": "1"}
    words = ["family", "export", str(shallow_family.path), "--out", str(tmp_path), "--member", "router"]
    subprocess.run(
        [sys.executable, "-m", "builder", *words], env=environment, check=True, capture_output=True
    )
    assert (tmp_path / "router.cact").read_bytes() == export_member(shallow_family, "router")


def test_a_finished_container_goes_through_untouched(demo_family, tmp_path):
    shutil.copy(demo_family.folder / "base.cact", tmp_path / "mine.cact")
    (tmp_path / "family.toml").write_text('[family]\nname="f"\ntitle="F"\n[base]\ncact="mine.cact"\n')
    (path,) = export_family(load_family(tmp_path / "family.toml"), tmp_path / "out")
    assert path.read_bytes() == (tmp_path / "mine.cact").read_bytes()


def test_the_tokenizer_may_come_out_of_a_container(demo_family, upstream_files, tmp_path):
    shutil.copy(demo_family.folder / "base.cact", tmp_path / "base.cact")
    shutil.copy(upstream_files.checkpoint, tmp_path / "tiny.safetensors")
    text = '[family]\nname="f"\ntitle="F"\ntokenizer="base.cact"\n[base]\ncheckpoint="tiny.safetensors"\n'
    (tmp_path / "family.toml").write_text(text)
    exported = read_container(export_member(load_family(tmp_path / "family.toml"), "base"))
    assert exported.tokenizer_blob == read_container(tmp_path / "base.cact").tokenizer_blob


def test_a_checkpoint_without_a_tokenizer_is_refused_with_the_next_step(upstream_files, tmp_path):
    shutil.copy(upstream_files.checkpoint, tmp_path / "tiny.safetensors")
    text = '[family]\nname="f"\ntitle="F"\n[base]\ncheckpoint="tiny.safetensors"\n'
    (tmp_path / "family.toml").write_text(text)
    with pytest.raises(FamilyError, match=r"family.tokenizer: is missing.*name the SentencePiece model"):
        export_member(load_family(tmp_path / "family.toml"), "base")


def test_the_header_says_what_the_demo_checkpoint_says(demo_family):
    header = read_container(demo_family.folder / "home.cact").header
    assert (header.tag, header.layer_count, header.d_model) == (layout.TAG_84, 6, 256)
    assert (header.global_layers, header.sites, header.kv_window) == ((2, 5), (1, 3, 5), 512)
    assert math.isclose(header.rope_theta, 1e5)


@pytest.fixture
def no_work(monkeypatch):
    """Fails the test as soon as a member is exported."""
    monkeypatch.setattr(Exporters, "export", lambda *_: pytest.fail("exported before the place was checked"))


def test_a_place_that_is_taken_is_found_before_the_export(shallow_family, tmp_path, no_work):
    (tmp_path / "router.cact").mkdir()
    with pytest.raises(RefusedError, match=r"router\.cact: cannot be written: is a folder") as caught:
        export_family(shallow_family, tmp_path)
    assert caught.value.code == "bad_target"
    assert [path.name for path in tmp_path.iterdir()] == ["router.cact"]


def test_a_folder_that_cannot_be_made_is_found_before_the_export(shallow_family, tmp_path, no_work):
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(RefusedError, match="is a link to nothing, not a folder"):
        export_family(shallow_family, tmp_path / "dangling")


def test_a_source_is_not_overwritten(tmp_path, no_work):
    (tmp_path / "base.cact").write_bytes(b"mine")
    (tmp_path / "family.toml").write_text('[family]\nname="f"\ntitle="F"\n[base]\ncact="base.cact"\n')
    with pytest.raises(RefusedError, match=r"is the same file as .*, which is read"):
        export_family(load_family(tmp_path / "family.toml"), tmp_path)
