"""`delta make`, `apply` and `show`: files in, files out, and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from builder.cli import main

CONTAINER = Path(__file__).parents[1] / "golden" / "tiny84.cact"
OTHER = CONTAINER.with_name("tiny84_widths.cact")


@pytest.fixture
def delta(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """delta(words) -> (exit code, stdout, stderr), in a folder with base.cact and other.cact."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(CONTAINER, "base.cact")
    shutil.copy(OTHER, "other.cact")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["delta", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_make_and_apply_give_the_target_and_one_line_each(delta):
    code, out, err = delta("make", "base.cact", "other.cact", "--effort", "0", "--out", "p.patch")
    assert (code, err) == (0, "")
    assert out.startswith(f"p.patch {Path('p.patch').stat().st_size} bytes sha256 ")
    assert delta("apply", "base.cact", "p.patch", "--out", "new.cact")[0] == 0
    assert Path("new.cact").read_bytes() == OTHER.read_bytes()
    assert sorted(os.listdir()) == ["base.cact", "new.cact", "other.cact", "p.patch"]


def test_a_result_has_the_rights_that_the_umask_leaves(delta):
    before = os.umask(0o027)
    try:
        assert delta("make", "base.cact", "base.cact", "--out", "p.patch")[0] == 0
    finally:
        os.umask(before)
    assert Path("p.patch").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("base.cact", "is the same file as base.cact, which is read"),
        ("link", "is the same file as other.cact, which is read"),
        ("pipe", "is a pipe, not a file"),
        ("folder", "is a folder, not a file"),
        ("gone/p.patch", "gone is no folder"),
    ],
)
def test_a_place_that_is_no_place_for_a_patch_is_refused_before_any_work(delta, out, reason):
    os.mkfifo("pipe")
    Path("folder").mkdir()
    os.link("other.cact", "link")
    before = sorted(os.listdir())
    code, _, err = delta("make", "base.cact", "other.cact", "--out", out)
    assert (code, err) == (1, f"delta: {out}: cannot be written: {reason}\n")
    assert sorted(os.listdir()) == before
    assert Path("base.cact").read_bytes() == CONTAINER.read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("make", "base.cact", "text", "--out", "p"), "text: header.tag at byte 0: is 0x6c656873"),
        (("make", "pointer", "base.cact", "--out", "p"), "pointer: is a Git LFS pointer, not the file"),
        (("apply", "base.cact", "pointer", "--out", "p"), "pointer: is a Git LFS pointer, not the file"),
        (("apply", "base.cact", "text", "--out", "p"), "text: patch: patch_bytes at byte 0: is 12"),
        (("show", "text"), "text: patch: patch_bytes at byte 0: is 12"),
        (("show", "p.patch", "--base", "text"), "text: header.tag at byte 0: is 0x6c656873"),
        (("show", "pipe"), "pipe: cannot be read: is a pipe, not a file"),
        (("show", "/dev/zero"), "/dev/zero: cannot be read: is a device, not a file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(delta, words, sentence):
    Path("text").write_text("shell script")
    Path("pointer").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    os.mkfifo("pipe")
    Path("p.patch").touch()
    code, out, err = delta(*words)
    assert (code, out) == (1, "")
    assert err.startswith(f"delta: {sentence}")
    assert err.count("\n") == 1
