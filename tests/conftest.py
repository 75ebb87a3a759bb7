"""What every room's tests share: the demo family, exported and packed once."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from builder.family.export import export_family
from builder.family.family import Family, load_family
from builder.publish.pack import Options, pack
from builder.publish.pages import default_web_folder
from tests.made_once import MadeOnce

# Upstream's package is an oracle of several rooms: it must neither call home nor fetch; JAX stays on the CPU.
os.environ |= {"NEEDLE_TELEMETRY": "0", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}

# A run in the background of a shell ignores Ctrl-C, and children inherit that; some tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run; `--hypothesis-profile=default` draws new ones.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DEMO = ROOT / "examples" / "demo"
LONGEST = (
    *("parity/test_demo_parity.py", "web/test_life_cycle.py", "web/test_bad_input.py"),
    *("parity/test_engine_parity.py", "web/test_visits.py", "parity/test_random_parity.py"),
    *("reference/test_chat_command.py", "engine/test_builds.py", "experts/test_compile.py"),
    *("publish/test_wheel.py", "web/test_parity.py", "experts/test_atomicity.py", "cact/test_hostile.py"),
    *("delta/test_native.py", "family/test_against_upstream.py", "engine/test_depth.py"),
    *(
        "web/test_javascript.py",
        "publish/test_upgrades.py",
        "publish/test_previous.py",
        "publish/test_serve.py",
    ),
)
"""The files that take over 15 s, or over 3 in `make check`.

They go first: begun at the end, one would keep one process busy alone.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@dataclass(frozen=True)
class DemoFamily:
    """The family in examples/demo and the folder that holds base.cact, router.cact, home.cact, ..."""

    folder: Path
    family: Family


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    base = tmp_path_factory.getbasetemp()
    is_one_of_several = "PYTEST_XDIST_WORKER" in os.environ  # then each process has a folder within the run's
    return MadeOnce((base.parent if is_one_of_several else base) / "made-once")


@pytest.fixture(scope="session")
def demo_family(made_once: MadeOnce) -> DemoFamily:
    family = load_family(DEMO / "family.toml")

    def export(folder: Path) -> None:
        folder.mkdir()
        export_family(family, folder)

    return DemoFamily(made_once("demo", export), family)


@pytest.fixture(scope="session")
def demo_cache(made_once: MadeOnce) -> Path:
    """The cache of a demo that was packed; with a copy of it, packing the demo again makes no patch."""

    def fill(folder: Path) -> None:
        options = Options(2**23, 2, folder, default_web_folder())
        pack(
            load_family(DEMO / "family.toml"),
            folder.with_name("site"),
            options,
            lambda step, done, total: None,
        )

    return made_once("demo-cache", fill)


@pytest.fixture(scope="session")
def sanitized(made_once: MadeOnce) -> Callable[[Path, Sequence[Path]], Path]:
    """Links C files and the engine into a program under sanitizers; the engine is compiled once a run."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc on PATH for the native build")
    build = runpy.run_path(str(ROOT / "engine" / "build.py"))
    objects = sorted(made_once("sanitized", build["compile_objects"]).glob("*.o"))
    return lambda output, drivers: build["compile_native"](output, drivers, objects=objects)
