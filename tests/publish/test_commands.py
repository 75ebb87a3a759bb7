from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builder.publish import pack_command
from builder.publish.verify import verify
from tests.cli.conftest import Run, run
from tests.delta.terminal import seen, stderr_on_a_terminal
from tests.publish.conftest import MODEL_BYTES, House

__all__ = ["run"]

MODELS = ("base", "router", "home", "media")
TABLE = """\
member  travels as  whole bytes  delivered bytes   share  changed codes  parts
base    whole           665,347          665,347  100.0%                     1
"""


@pytest.fixture
def packable(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """A house that the command packs with the tests' small page."""
    monkeypatch.setattr(pack_command, "default_web_folder", lambda: house.web)
    return house


def pack_words(house: House, *more: str | Path) -> list[str | Path]:
    words = ["pack", house.folder / "family.toml", "--out", house.folder / "site", "--effort", "0"]
    return [*words, "--cache", house.folder / "cache", *more]


def test_pack_prints_the_table_and_says_at_last_what_happened(run: Run, packable: House) -> None:
    code, out, err = run(*pack_words(packable))
    assert code == 0
    assert out.startswith(TABLE)
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["router", "patch"],
        ["home", "patch"],
        ["media", "patch"],
    ]
    assert lines[5].startswith("first visit: ")
    assert lines[6].startswith("whole family: ")
    assert lines[6].endswith("of 2,661,388 as whole files")
    release = json.loads((packable.folder / "site" / "family.json").read_bytes())["release"]
    end = f"4 models, 4 parts, release {release[:12]}; 0 steps done, 3 reused"
    assert err.splitlines()[-1] == f"pack: {packable.folder / 'site'}: {end}"
    assert verify(packable.folder / "site").mismatches == []


def test_pack_names_the_steps_that_it_really_does(run: Run, packable: House) -> None:
    _, _, err = run(*pack_words(packable, "--cache", packable.folder / "cold", "--jobs", "1"))
    assert err.splitlines()[:3] == ["pack: patch router", "pack: patch home", "pack: patch media"]


def test_pack_json_is_one_document_on_the_last_line(run: Run, packable: House) -> None:
    _, out, _ = run(*pack_words(packable, "--json", "--part-size", "200KiB"))
    document = json.loads(out.splitlines()[-1])
    by_id = {member["id"]: member for member in document["members"]}
    assert by_id["base"]["parts"] == 4
    manifest = json.loads((packable.folder / "site" / "family.json").read_bytes())
    delivered = [specialist["delivery"]["bytes"] for specialist in manifest["specialists"]]
    assert [by_id["home"]["delivered_bytes"], by_id["media"]["delivered_bytes"]] == delivered
    files = [path for path in (packable.folder / "site").rglob("*") if path.is_file()]
    totals = document["totals"]
    assert sum(path.stat().st_size for path in files) == sum(
        totals[name] for name in ("page_bytes", "engine_bytes", "manifest_bytes", "family_bytes")
    )
    assert totals["first_visit_bytes"] == sum(path.stat().st_size for path in files) - sum(delivered)
    assert document["steps"] == {"made": [], "reused": ["patch home", "patch media", "patch router"]}


def test_document_names_every_key_of_the_report_and_every_option(run: Run, packable: House) -> None:
    text = (Path(__file__).parents[2] / "docs" / "publish.md").read_text(encoding="utf-8")
    run(*pack_words(packable))
    _, out, _ = run(*pack_words(packable, "--json", "--previous", packable.folder / "site"))
    document = json.loads(out.splitlines()[-1])
    keys = [
        *document,
        *document["members"][0],
        *document["upgrades"][0],
        *document["totals"],
        *document["steps"],
        *document["files"],
    ]
    assert [key for key in keys if f'"{key}"' not in text] == []
    for command in ("pack", "verify", "serve"):
        options = re.findall(r"--[a-z-]+", run(command, "--help")[1])
        assert [option for option in options if option not in text and option != "--help"] == []


def test_pack_keeps_its_cache_beside_the_family(run: Run, packable: House) -> None:
    words = pack_words(packable)
    run(*words[:6])
    assert (packable.folder / ".saguaro-cache" / ".gitignore").is_file()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--part-size", "26MiB"], 2, "pack: --part-size: is 26MiB, must be 4KiB to 25MiB"),
        (["--part-size", "tiny"], 2, "pack: --part-size: is tiny"),
        (["--effort", "10"], 2, "pack: --effort: is 10, must be 0 to 9"),
        (["--jobs", "0"], 2, "pack: --jobs: is 0, must be 1 to 64"),
    ],
)
def test_pack_refuses_options_that_make_no_sense(
    run: Run, packable: House, words: list[str], code: int, sentence: str
) -> None:
    found, out, err = run(*pack_words(packable, *words))
    assert (found, out) == (code, "")
    assert err.startswith(sentence)
    assert not (packable.folder / "site").exists()


@pytest.mark.parametrize("name", ["missing.toml", "base.cact"])
def test_pack_refuses_what_is_no_family_file(run: Run, packable: House, name: str) -> None:
    code, out, err = run("pack", packable.folder / name, "--out", packable.folder / "site")
    assert (code, out) == (1, "")
    assert name in err
    assert err.count("\n") == 1


def test_verify_lists_the_models_and_counts(run: Run, site: Path) -> None:
    code, out, err = run("verify", site)
    assert (code, err) == (0, "verify: 4 models, 7 parts, 0 mismatches\n")
    assert [line.rpartition("  ")[0] for line in out.splitlines()] == [
        f"{name}  {MODEL_BYTES:,} bytes" for name in ("base", "router", "home", "media")
    ]


def test_verify_of_a_damaged_site_is_exit_1_with_its_sentences(run: Run, site: Path) -> None:
    part = json.loads((site / "family.json").read_bytes())["specialists"][1]["delivery"]["parts"][0]
    (site / part["path"]).write_bytes(b"x")
    code, out, err = run("verify", site, "--json")
    assert code == 1
    lines = err.splitlines()
    assert str(site / part["path"]) in lines[0]
    assert lines[1:] == ["verify: 3 models, 7 parts, 1 mismatch"]
    document = json.loads(out.splitlines()[-1])
    assert document["mismatches"] == lines[:1]
    assert [model["id"] for model in document["models"]] == ["base", "router", "home"]


@pytest.mark.parametrize("command", ["verify", "serve"])
def test_folder_that_is_no_site_is_refused_with_the_next_step(run: Run, tmp_path: Path, command: str) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        code, out, err = run(command, folder)
        assert (code, out) == (1, "")
        assert f"python -m builder pack --out {folder}" in err
        assert err.count("\n") == 1


@contextmanager
def serve(site: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "builder", "serve", str(site), "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_serve_prints_its_address_and_ends_cleanly_on_ctrl_c(site: Path) -> None:
    with serve(site, "--prefix", "/repo") as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/repo/")
        with urllib.request.urlopen(address + "family.json", timeout=60) as response:
            assert response.read() == (site / "family.json").read_bytes()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert err.splitlines() == ["serve: stop with Ctrl-C", "serve: stopped"]


def test_serve_says_that_a_port_is_taken(run: Run, site: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = run("serve", site, "--port", str(port))
    assert (code, out) == (2, "")
    assert f"--port {port}: cannot listen there" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["--port", "70000"], ["--port", "-1"], ["--host", "256.1.1.1"]])
def test_serve_refuses_addresses_that_are_none(run: Run, site: Path, words: list[str]) -> None:
    code, _, err = run("serve", site, *words)
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["pack", "verify"])
def test_output_is_plain_where_it_is_not_a_terminal(packable: House, run: Run, command: str) -> None:
    run(*pack_words(packable))
    words = pack_words(packable)[1:] if command == "pack" else [packable.folder / "site"]
    code, out, err = run(command, *words)
    assert code == 0
    assert "\x1b" not in out + err


def test_terminal_gets_a_table_and_no_color_is_obeyed(
    packable: House, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = run(*pack_words(packable))
    assert "━━━" in out
    assert re.search(r"\x1b\[[0-9;]*[34][0-9]", out) is None


def test_verify_does_not_let_a_file_name_steer_the_terminal(run: Run, site: Path) -> None:
    for name in ("a\x1b[31m\nbase: good", "b\u202e", "c", "d", "e", "f", "g" * 200):
        (site / name).write_text("")
    (site / f"app/{'0' * 12}").mkdir()
    (site / f"app/{'0' * 12}/x\x1b\x9b").write_text("")
    code, _, err = run("verify", site)
    assert (code, err.count("\n")) == (1, 3)
    assert "\x1b" not in err
    assert r"x\x1b\x9b: file: is named by no release here" in err
    assert r"left alone: a\x1b[31m\nbase: good, b\u202e, c, d, e and 2 more" in err


def test_each_line_of_progress_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads tell their steps: what is written in two pieces may be torn apart."""
    pieces: list[str] = []
    monkeypatch.setattr(sys.stderr, "write", lambda text: pieces.append(text) or len(text))
    with pack_command._progress() as progress:
        progress("patch home", 0, 1)
    assert pieces == ["pack: patch home\n"]


def test_a_terminal_sees_one_bar_over_all_members_that_is_gone_in_the_end(
    run: Run, packable: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stderr_on_a_terminal(monkeypatch) as written:
        code, out, _ = run(*pack_words(packable, "--cache", tmp_path / "cache"))
    assert (code, out.startswith(TABLE)) == (0, True)
    assert "3/3" in written[0]
    (line,) = seen(written[0])
    assert line.endswith("3 steps done, 0 reused")
