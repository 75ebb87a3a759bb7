"""The codec as a native program under sanitizers: the same bytes as WebAssembly, and no damage passes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.delta import apply_patch, make_patch
from tests.delta.golden_patches import FOLDER, REQUANTISED, pairs
from tests.delta.test_guided import HOSTILE, HOSTILE_BASE, HOSTILE_TARGET
from tests.fuzz.make_seeds import SEEDS, seeds

FUZZ = Path(__file__).parents[1] / "fuzz"
GOLDEN = sorted(path.stem for path in FOLDER.glob("*.patch"))


@pytest.fixture(scope="module")
def driver(sanitized: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("native") / "driver"
    sources = (Path(__file__).with_name("native_driver.c"), FUZZ / "fuzz_make.c", FUZZ / "fuzz_rebuild.c")
    return sanitized(program, sources)


def _run(driver: Path, *words: object) -> None:
    done = subprocess.run([driver, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_is_a_golden_patch_for_every_coder() -> None:
    assert GOLDEN == ["guided", "narrowed", "predicted", "predicted_seeded", "seeded", "unguided"]


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_patches_still_rebuild_their_target(name: str) -> None:
    base, patch = (FOLDER / f"{name}.base.cact").read_bytes(), (FOLDER / f"{name}.patch").read_bytes()
    assert (base, apply_patch(base, patch)) == pairs()[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("chunk", [1 << 20, 7])
def test_a_native_build_rebuilds_the_golden_patches(
    driver: Path, tmp_path: Path, name: str, chunk: int
) -> None:
    _run(
        driver, "rebuild", FOLDER / f"{name}.base.cact", FOLDER / f"{name}.patch", tmp_path / "target", chunk
    )
    assert (tmp_path / "target").read_bytes() == pairs()[name][1]


@pytest.mark.slow
@pytest.mark.parametrize("effort", [0, 1, 3])
def test_a_native_build_makes_the_same_patch(driver: Path, tmp_path: Path, effort: int) -> None:
    (tmp_path / "base").write_bytes(HOSTILE_BASE)
    (tmp_path / "target").write_bytes(HOSTILE_TARGET)
    _run(driver, "make", tmp_path / "base", tmp_path / "target", tmp_path / "patch", effort)
    assert (tmp_path / "patch").read_bytes() == make_patch(HOSTILE_BASE, HOSTILE_TARGET, effort=effort)


@pytest.mark.slow
def test_damaged_patches_are_refused_without_a_finding_of_the_sanitizers(
    driver: Path, tmp_path: Path
) -> None:
    (tmp_path / "base").write_bytes(HOSTILE_BASE)
    (tmp_path / "patch").write_bytes(HOSTILE)
    _run(driver, "fuzz", tmp_path / "base", tmp_path / "patch", 300)
    for name in sorted({*GOLDEN} - {*REQUANTISED}):
        _run(driver, "fuzz", FOLDER / f"{name}.base.cact", FOLDER / f"{name}.patch", 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUANTISED)
def test_damage_to_what_a_shift_says_is_refused_or_without_effect(driver: Path, name: str) -> None:
    """A bit of the shift may move no code at all; then the target is still the one that its hash proves."""
    words = ["fuzz", FOLDER / f"{name}.base.cact", FOLDER / f"{name}.patch", 300]
    done = subprocess.run([driver, *map(str, words)], capture_output=True, text=True, check=False)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


def test_the_checked_in_seeds_are_those_that_the_script_writes() -> None:
    paths = [path for target in ("make", "rebuild") for path in (SEEDS / target).iterdir()]
    assert {str(path.relative_to(SEEDS)): path.read_bytes() for path in paths} == seeds()


@pytest.mark.slow
def test_every_seed_of_the_fuzzers_runs_without_a_finding(driver: Path) -> None:
    for name in seeds():
        _run(driver, "seed", name.split("/")[0], SEEDS / name)
