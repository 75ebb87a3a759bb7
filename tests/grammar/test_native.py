"""The grammar's C under AddressSanitizer and UBSan, over real tools and over damaged ones."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.grammar.samples import CATALOGUE, tool_text

BUILD = Path(__file__).parents[2] / "engine" / "build.py"


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(container, tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc on PATH for the native build")
    spec = importlib.util.spec_from_file_location("engine_build_native", BUILD)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    program = build.compile_native(tmp_path / "driver", [Path(__file__).with_name("driver.c")])
    (tmp_path / "model.cact").write_bytes(container)
    paths = []
    for i, tool in enumerate(CATALOGUE):
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(tool_text(tool), "utf-8")
    done = subprocess.run(
        [program, tmp_path / "model.cact", *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"(\d+) compiled, (\d+) refused\n", done.stdout)
    assert found
    assert int(found[1]) >= len(CATALOGUE)
    assert int(found[2]) > 100
