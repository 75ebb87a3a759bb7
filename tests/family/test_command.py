"""`family export` and `family check`: what they print and how they end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys

import pytest

from builder.cli import main


@pytest.fixture
def family(capsys: pytest.CaptureFixture[str]):
    def run(*words: object) -> tuple[int, str, str]:
        code = main(["family", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_export_prints_one_line_per_file_and_says_at_the_end_what_happened(family, shallow_family, tmp_path):
    words = ("--out", tmp_path / "new", "--member", "router")
    code, out, err = family("export", shallow_family.path, *words)
    digest = hashlib.sha256((tmp_path / "new" / "router.cact").read_bytes()).hexdigest()
    assert code == 0
    assert out == f"{tmp_path}/new/router.cact  665,347 bytes  {digest[:12]}\n"
    assert err == f"family: exported 1 model to {tmp_path}/new\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["router.cact"]


@pytest.mark.slow
def test_json_is_the_last_line_of_an_export(family, shallow_family, tmp_path):
    _, out, _ = family("export", shallow_family.path, "--out", tmp_path, "--json")
    document = json.loads(out.splitlines()[-1])
    assert document["family"] == "shallow"
    for name, model in zip(("base", "router"), document["models"], strict=True):
        data = (tmp_path / f"{name}.cact").read_bytes()
        assert model == {
            "id": name,
            "path": str(tmp_path / f"{name}.cact"),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }


@pytest.mark.slow
def test_check_prints_a_line_per_member_and_writes_nothing(family, demo_family, tmp_path):
    code, out, err = family("check", demo_family.family.path)
    assert code == 0
    assert out == "base: good\nrouter: good\nhome: good\nkitchen: good\nmedia: good\ncalendar: good\n"
    assert err == "family: 6 members, 0 problems\n"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            'tools = [{name="a"}, {name="t", parameters={type="strng"}}]',
            "tools[1]: t/parameters/type: is not what docs/grammar.md allows there; ",
        ),
        ('tools = [{name="a"}, {name="a"}]', "tools[1]: a/name: a tool of this name stands before it"),
        ('tools = [{name="a"}]\nmax_new_tokens = 2', "max_new_tokens: is 2, must be at least "),
    ],
)
def test_check_refuses_the_tools_that_pack_refuses(family, demo_family, tmp_path, keys, sentence):
    for name in ("base", "home"):
        shutil.copy(demo_family.folder / f"{name}.cact", tmp_path / f"{name}.cact")
    (tmp_path / "family.toml").write_text(
        '[family]\nname="f"\ntitle="F"\n[base]\ncact="base.cact"\n'
        f'[[specialists]]\nid="home"\nabout="x"\ncact="home.cact"\n{keys}\n'
    )
    code, out, err = family("check", tmp_path / "family.toml")
    assert (code, err) == (1, "family: 2 members, 1 problem\n")
    assert out.startswith(f"base: good\nhome: {sentence}")


def test_check_ends_with_1_and_names_each_problem(family, demo_family, tmp_path):
    shutil.copy(demo_family.folder / "base.cact", tmp_path / "base.cact")
    (tmp_path / "family.toml").write_text(
        '[family]\nname="f"\ntitle="F"\n[base]\ncact="base.cact"\n'
        '[[specialists]]\nid="a"\nabout="x"\ncact="gone.cact"\n'
        '[[specialists]]\nid="b"\nabout="x"\ncact="base.cact"\n'
    )
    code, out, err = family("check", tmp_path / "family.toml", "--json")
    assert code == 1
    first, second, third, document = out.splitlines()
    assert (first, third) == ("base: good", "b: good")
    assert second == f"a: {tmp_path}/gone.cact: cannot be read: no such file or directory"
    assert err == "family: 3 members, 1 problem\n"
    assert [member["code"] for member in json.loads(document)["members"]] == [None, "unreadable", None]


def test_an_unknown_member_is_usage(family, demo_family, tmp_path):
    code, out, err = family("export", demo_family.family.path, "--out", tmp_path, "--member", "house")
    assert (code, out) == (2, "")
    assert "has no member 'house'; it has base, router, home" in err


def test_an_empty_member_is_unknown(family, demo_family, tmp_path):
    code, out, err = family("export", demo_family.family.path, "--out", tmp_path, "--member", "")
    assert (code, out) == (2, "")
    assert "has no member ''; it has base, router" in err


def test_a_finding_stays_on_its_line(family, tmp_path):
    text = '[family]\nname="f"\ntitle="F"\n[base]\ncact="\\u001b[31mEVIL\\nhome: good"\n'
    (tmp_path / "family.toml").write_text(text)
    code, out, _ = family("check", tmp_path / "family.toml")
    assert code == 1
    assert out.startswith(f"base: {tmp_path}/\\x1b[31mEVIL\\nhome: good: cannot be read")
    assert out.count("\n") == 1


def test_a_bad_family_is_refused_with_one_line(family, tmp_path):
    (tmp_path / "family.toml").write_text("[family]\n")
    code, out, err = family("export", tmp_path / "family.toml", "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    assert err.startswith(f"family: {tmp_path}/family.toml: family.name: field required")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_progress_is_drawn_on_a_terminal_and_kept_out_of_the_result(
    family, shallow_family, tmp_path, monkeypatch
):
    terminal, other_end = os.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen, os.fdopen(other_end, "w") as stderr:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", stderr)
        _, out, _ = family("export", shallow_family.path, "--out", tmp_path, "--member", "base")
        stderr.flush()
        shown = screen.read(1 << 16)
    assert b"\x1b[" in shown
    digest = hashlib.sha256((tmp_path / "base.cact").read_bytes()).hexdigest()
    assert out == f"{tmp_path}/base.cact  665,347 bytes  {digest[:12]}\n"
