from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from builder import cli
from builder.cli import COMMANDS, main
from builder.errors import MissingExtraError, RefusedError, UsageError
from tests.cli.conftest import Run

HEAVY = ["jax", "matplotlib", "onnx", "sentencepiece", "torch"]
WITHOUT_TORCH = [name for name in COMMANDS if name != "experts"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_says_what_it_is_for(run: Run, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: python -m builder {command} ")
    assert COMMANDS[command][1].capitalize()[:20] in out


def test_help_lists_every_command(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name, (_, line) in COMMANDS.items():
        assert name in out
        assert line.split()[0] in out


@pytest.mark.parametrize("words", [[], ["pakc"], ["pack", "--otu", "site"], ["pack"]])
def test_wrong_usage_is_exit_2_with_the_usage_on_stderr(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("usage: python -m builder")
    assert "Traceback" not in err


def test_heavy_packages_are_imported_only_by_who_needs_them() -> None:
    program = (
        "import importlib, json, sys\nfrom builder.cli import COMMANDS\n"
        f"for name in {WITHOUT_TORCH!r}: importlib.import_module(COMMANDS[name][0])\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def fail(error: BaseException) -> Any:
    def run(arguments: Namespace) -> int:
        raise error

    def add_arguments(parser: ArgumentParser) -> None:
        """No arguments."""

    return lambda name: SimpleNamespace(run=run, add_arguments=add_arguments)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (RefusedError("x.cact: tag: is 0, must be 1"), 1, "pack: x.cact: tag: is 0, must be 1\n"),
        (UsageError("--jobs: is 0, must be 1 to 64"), 2, "pack: --jobs: is 0, must be 1 to 64\n"),
        (MissingExtraError("chat --reference", "reference"), 2, "saguaro[reference]'\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a.toml"),
            1,
            "pack: a.toml: no such file or directory\n",
        ),
        (OSError(28, "No space left on device"), 1, "pack: standard output: no space left on device\n"),
        (RefusedError("a\x1b[31m\nbase: good\x9b\u202e"), 1, "pack: a\\x1b[31m\\nbase: good\\x9b\\u202e\n"),
        (KeyboardInterrupt(), 130, "pack: stopped\n"),
    ],
)
def test_each_failure_is_one_sentence_and_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str
) -> None:
    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=fail(error)))
    found, out, err = run("pack")
    assert (found, out) == (code, "")
    assert err.endswith(sentence)
    assert err.count("\n") == 1


def test_our_own_mistakes_are_not_hidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=fail(ZeroDivisionError("ours"))))
    with pytest.raises(ZeroDivisionError):
        run("pack")


def command(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with the interpreter's usual buffers."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= options.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "builder", *words],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = command("--help", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_full_disk_behind_stdout_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = command("--help", stdout=full)
    assert (done.returncode, done.stderr) == (1, "saguaro: standard output: no space left on device\n")


def test_closed_streams_are_empty_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(arguments: Namespace) -> int:
        print("nowhere")
        seen.append(sys.stdin.read())
        return 0

    module = SimpleNamespace(run=run, add_arguments=lambda parser: None)
    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=lambda name: module))
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["pack"]) == 0
    assert seen == [""]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def test_what_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()

    def run(arguments: Namespace) -> int:
        print("\u00e9 \udcff")
        return 0

    module = SimpleNamespace(run=run, add_arguments=lambda parser: None)
    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=lambda name: module))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["pack"]) == 0
    assert written.getvalue() == b"\\xe9 \\udcff\n"


def test_interruption_while_a_command_is_imported_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=import_module))
    assert run("pack") == (130, "", "pack: stopped\n")
