"""`show`: what it prints, for people, for diff and for programs."""

from __future__ import annotations

import difflib
import hashlib
import json
import os

import pytest

from builder.cact.reader import read_container
from builder.cli import main
from tests.cact.samples import GOLDEN

TINY = str(GOLDEN / "tiny84.cact")


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]):
    def run(*words: object) -> tuple[int, str, str]:
        code = main(["show", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_people_see_the_header_in_words_and_one_tensor_per_line(show):
    code, out, err = show(TINY)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:13] == [
        f"{TINY}: Needle 3 (tag 0x05e12a84), 92 tensors, 21,984 bytes",
        "",
        "  stack      2 layers of width 8 (rotation 8), 2 lanes, 64 positions",
        "  attention  2 heads over 1 for keys and values, 2 wide (4 for values), RoPE base 10,000, "
        "3 conv taps",
        "  sees       the last 16 positions; all of it in layer 1",
        "  engrams    at layer 1: 2 tables of 5 x 4 for orders 2 and 3",
        "  vocabulary 24 rows, 22 logits, 12 pieces (2 markers, 0 bytes), no dummy prefix",
        "  cache      window 32, 8 bits",
        "  heads      embedding, confidence, router",
        "  weights    1,672 CQ4 in 11,484 bytes, 830 FP16 in 1,660 bytes, 16 FP32 in 64 bytes",
        "",
        "  tensor                     kind      shape         bytes            at",
        "  embedding                  CQ4      24 x 8         1,584         4,416",
    ]
    assert len(lines) == 12 + 92
    assert lines[-1].split() == ["tokenizer", "RAW", "160", "21,824"]


def test_generation_two_and_every_width_can_be_shown(show):
    assert "Needle 2 (tag 0x05e12a83), 51 tensors" in show(GOLDEN / "tiny83.cact")[1]
    out = show(GOLDEN / "tiny84_widths.cact")[1]
    assert all(f" {kind} " in out for kind in ("CQ1", "CQ2", "CQ3", "CQ4", "CQT"))


def test_a_diff_of_two_members_shows_the_tensors_that_an_adapter_moved(show, demo_family):
    base = show("--diffable", demo_family.folder / "base.cact")[1].splitlines()
    home = show("--diffable", demo_family.folder / "home.cact")[1].splitlines()
    moved = [line for line in difflib.ndiff(base, home) if line.startswith("+ ")]
    assert len(moved) == 30
    assert all("_proj = CQ4 [" in line for line in moved)


def test_the_diffable_form_depends_on_content_alone(show, tmp_path):
    (tmp_path / "other name.cact").write_bytes((GOLDEN / "tiny84.cact").read_bytes())
    assert show("--diffable", tmp_path / "other name.cact") == show("--diffable", TINY)


def test_json_is_one_line_with_every_tensor_and_its_hash(show):
    code, out, _ = show(TINY, "--json")
    assert code == 0
    assert out.count("\n") == 1
    document = json.loads(out)
    data = (GOLDEN / "tiny84.cact").read_bytes()
    assert document["sha256"] == hashlib.sha256(data).hexdigest()
    assert (document["tag"], document["generation"], document["bytes"]) == ("0x05e12a84", 3, len(data))
    assert document["header"]["sites"] == [1]
    for tensor, record in zip(document["tensors"], read_container(data).records, strict=True):
        blob = data[tensor["offset"] : tensor["offset"] + tensor["bytes"]]
        assert tensor["sha256"] == hashlib.sha256(blob).hexdigest()
        assert (tensor["name"], tuple(tensor["shape"])) == (record.name, record.shape)


def test_a_broken_file_gives_one_sentence_and_exit_code_1(show, tmp_path):
    (tmp_path / "cut.cact").write_bytes((GOLDEN / "tiny84.cact").read_bytes()[:5000])
    code, out, err = show(tmp_path / "cut.cact")
    assert (code, out) == (1, "")
    assert err == (
        f"show: {tmp_path}/cut.cact: embedding at byte 5000: is cut off after 5000 bytes, must be 6000 bytes "
        "or more (docs/formats/cact.md rule 8); fetch or write the file again\n"
    )


def test_what_is_no_container_on_disk_is_refused_unopened(show, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pointer.cact").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    for path, reason in (
        (tmp_path / "pipe", "cannot be read: is a pipe, not a file"),
        ("/dev/zero", "cannot be read: is a device, not a file"),
        (tmp_path / "pointer.cact", "is a Git LFS pointer, not the file; fetch the file with: git lfs pull"),
    ):
        assert show(path) == (1, "", f"show: {path}: {reason}\n")


def test_both_forms_at_once_are_refused_as_usage(show):
    assert show(TINY, "--json", "--diffable")[:2] == (2, "")


def test_the_name_of_the_file_does_not_steer_the_terminal(show, tmp_path):
    path = tmp_path / "a\x1b[31m\u00e9.cact"
    path.write_bytes((GOLDEN / "tiny84.cact").read_bytes())
    assert show(path)[1].startswith(rf"{tmp_path}/a\x1b[31mé.cact: Needle 3")
    line = show(path, "--json")[1]
    assert line.isascii()
    assert json.loads(line)["file"] == str(path)
