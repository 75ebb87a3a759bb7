"""The engine's targets of fuzzing over their seeds and damaged forms of them, under gcc's sanitizers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.engine_seeds import engine_seeds
from tests.fuzz.make_seeds import SEEDS
from tests.fuzz.models import ENVIRONMENT, write_models

HERE = Path(__file__).parent
ROUNDS = {"container": 25, "tokenizer": 25, "grammar": 25, "calls": 10}
"""Damaged forms of each seed."""


@pytest.fixture(scope="module")
def replay(sanitized: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    drivers = [HERE / "replay.c", *(HERE / f"fuzz_{target}.c" for target in ROUNDS)]
    return sanitized(tmp_path_factory.mktemp("native") / "replay", drivers)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("target", ROUNDS)
def test_the_checked_in_seeds_are_those_that_the_script_writes(target: str) -> None:
    found = {f"{target}/{path.name}": path.read_bytes() for path in (SEEDS / target).iterdir()}
    assert found == {name: data for name, data in engine_seeds().items() if name.startswith(f"{target}/")}


@pytest.mark.slow
@pytest.mark.parametrize("target", ROUNDS)
def test_seeds_and_damaged_seeds_run_without_a_finding(replay: Path, models: Path, target: str) -> None:
    command = [replay, target, str(ROUNDS[target]), *sorted((SEEDS / target).iterdir())]
    environment = {**os.environ, ENVIRONMENT: str(models)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
