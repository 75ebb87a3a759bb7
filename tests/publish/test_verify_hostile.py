"""A site that a stranger made: its seal and its release are right, and mean nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from builder.errors import ManifestError
from builder.publish.site import open_site
from builder.publish.verify import verify

SOUND = "sha256-" + "A" * 43 + "="


def write_worker(site: Path, lines: bytes) -> None:
    """A `sw.js` with a right seal."""
    body = b"// " + open_site(site).manifest.release.encode() + b"\n" + lines + b"\n"
    seal = hashlib.sha256(body).hexdigest()
    (site / "sw.js").write_bytes(body + f"// sealed: {seal}\n".encode())


LISTS = [
    "[]",
    "[1,2]",
    '[[["x"],"y"]]',
    '[["a",1],[2,"b"]]',
    f'[["app/\\u0000","{SOUND}"]]',
    f'[["/etc/hostname","{SOUND}"]]',
    f'[["../../../../etc/hostname","{SOUND}"]]',
    f'[["app/../../../etc/hostname","{SOUND}"]]',
    f'[["app/pipe/../../pipe","{SOUND}"]]',
    f'[["app/\\n","{SOUND}"]]',
    '[["app/x.js",""]]',
    f'[["index.html","{SOUND}"]]',
    f'[["app/x.js","{SOUND}"],["app/x.js","{SOUND}"]]',
    "[" * 100_000 + "]",
]


@pytest.mark.parametrize("text", LISTS)
def test_precache_list_of_another_form_is_one_mismatch(site: Path, text: str) -> None:
    write_worker(site, f"const PRECACHE = JSON.parse('{text}');".encode())
    (mismatch,) = verify(site).mismatches
    assert mismatch.endswith("sw.js: precache list: is missing or of another form, must be as pack writes it")


@pytest.mark.parametrize("lines", [b"", b"\xff\xfe"])
def test_service_worker_without_a_list_is_a_mismatch(site: Path, lines: bytes) -> None:
    write_worker(site, lines)
    assert ["precache list" in sentence for sentence in verify(site).mismatches] == [True]


@pytest.mark.parametrize("name", ["index.html", "sw.js", "previous.json", "part", "app", "engine"])
def test_pipe_in_the_place_of_a_file_is_told_and_not_waited_for(site: Path, name: str) -> None:
    manifest = open_site(site).manifest
    paths = {
        "part": manifest.base.delivery.parts[0].path,
        "app": f"{manifest.app.path}/page/main.js",
        "engine": manifest.engine.path,
    }
    path = site / paths.get(name, name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert [f"{path}: cannot be read: is a pipe, not a file" in it for it in verify(site).mismatches] == [
        True
    ]


def test_pipe_in_the_place_of_the_manifest_is_refused(site: Path) -> None:
    (site / "family.json").unlink()
    os.mkfifo(site / "family.json")
    with pytest.raises(ManifestError, match="is a pipe, not a file"):
        verify(site)


def test_part_is_not_read_beyond_its_size(site: Path) -> None:
    path = site / open_site(site).manifest.base.delivery.parts[0].path
    with path.open("r+b") as file:
        file.truncate(2**40)
    (mismatch,) = verify(site).mismatches
    assert f"size: is {2**40} bytes, must be at most" in mismatch
