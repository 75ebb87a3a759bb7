"""The JavaScript tests, run by node: one pytest test per file, so that `make check` shows which one broke."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
NODE = Path(sys.executable).with_name("node")


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.test.js")))
def test_node_passes(file: str) -> None:
    run = subprocess.run(
        [NODE, "--test", "--test-reporter=spec", file],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
