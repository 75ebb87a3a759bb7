"""`delta make`, `apply` and `show`: files in, files out, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from builder.cact.reader import read_container
from builder.cli import main
from builder.delta import delta_command

CONTAINER = Path(__file__).parents[1] / "golden" / "tiny84.cact"
OTHER = CONTAINER.with_name("tiny84_widths.cact")
GOLDEN = CONTAINER.parent / "patches"


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
    patch, target = Path("p.patch").read_bytes(), OTHER.read_bytes()
    share = f"{100 * len(patch) / len(target):.1f}"
    assert (code, err) == (0, f"delta: made a patch of {share} % of other.cact\n")
    assert out == f"p.patch  {len(patch):,} bytes  {hashlib.sha256(patch).hexdigest()[:12]}\n"
    code, out, err = delta("apply", "base.cact", "p.patch", "--out", "new.cact")
    assert (code, err) == (0, "delta: rebuilt new.cact, whose hash the patch proves\n")
    assert out == f"new.cact  {len(target):,} bytes  {hashlib.sha256(target).hexdigest()[:12]}\n"
    assert Path("new.cact").read_bytes() == target
    assert sorted(os.listdir()) == ["base.cact", "new.cact", "other.cact", "p.patch"]


def test_show_tells_both_files_in_the_same_form(delta):
    delta("make", "base.cact", "other.cact", "--effort", "0", "--out", "p.patch")
    code, out, err = delta("show", "p.patch")
    assert (code, err) == (0, "")
    for line, name, path in zip(out.splitlines()[1:3], ("base  ", "target"), (CONTAINER, OTHER), strict=True):
        data = path.read_bytes()
        assert line == f"{name}  {len(data):,} bytes  {hashlib.sha256(data).hexdigest()[:12]}"


SHOWN = """\
version 1 container 0x05e12a84 patch 2,516 bytes
base    8,832 bytes  ca71a641e77a
target  8,832 bytes  859c620c9dc5
kind   offset  target  rank  patch    q    p  norms  codes
copy        0     384            6
table     384       0           47
cq        384   8,448     5  2,351  555  209    112  1,450
bytes: q 555, p 209, norm 112, code 1,450, table 33, literal 0, frame 157
"""


def test_show_says_where_the_bytes_go_without_a_column_that_would_be_empty(delta):
    assert delta("show", str(GOLDEN / "guided.patch")) == (0, SHOWN, "")


def test_show_names_tensors_after_a_base(delta):
    base = read_container("base.cact")
    tuned = bytearray(base.data)
    tuned[base.record("embedding").offset_bytes] ^= 1
    Path("tuned.cact").write_bytes(tuned)
    delta("make", "base.cact", "tuned.cact", "--out", "p.patch")
    code, out, _ = delta("show", "p.patch", "--base", "base.cact")
    head, *lines = out.splitlines()[3:-1]
    assert code == 0
    assert head.endswith("  tensor")
    assert [line.split()[-1] for line in lines if line.startswith("cq ")] == ["embedding"]
    code, out, err = delta("show", "p.patch", "--base", "tuned.cact")
    assert (code, out) == (1, "")
    assert err.startswith("delta: p.patch: patch: header.base_sha256 at byte 32: is ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guided", "seeded", "unguided"])
def test_show_as_json_accounts_for_every_byte(delta, name):
    document = json.loads(delta("show", str(GOLDEN / f"{name}.patch"), "--json")[1])
    assert sum(document["bytes_by_part"].values()) == (GOLDEN / f"{name}.patch").stat().st_size
    assert all(count >= 0 for count in document["bytes_by_part"].values())


def test_the_seed_that_an_adapter_was_trained_from_reaches_the_maker(delta, monkeypatch):
    seeds = []
    monkeypatch.setattr(
        delta_command, "make_patch", lambda base, target, **options: seeds.append(options) or b"patch"
    )
    words = ("make", "base.cact", "other.cact", "--out", "p.patch", "--adapter-seed", "7")
    assert delta(*words)[0] == 0
    assert [options["adapter_seed"] for options in seeds] == [7]


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
