from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builder.cli import main

Result = tuple[int, str, str]
Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: `run("verify", path)` is (exit code, stdout, stderr)."""

    def call(*words: str | Path) -> Result:
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # argparse: --help and usage errors
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
