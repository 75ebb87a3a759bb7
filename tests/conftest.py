"""What every room's tests share: the demo family, exported once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from builder.family.export import export_family
from builder.family.family import Family, load_family

# Upstream's package is an oracle of several rooms: it must neither call home nor fetch; JAX stays on the CPU.
os.environ |= {"NEEDLE_TELEMETRY": "0", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}

# A run in the background of a shell ignores Ctrl-C, and children inherit that; some tests send it to them.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run; `--hypothesis-profile=default` draws new ones.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

DEMO = Path(__file__).parent.parent / "examples" / "demo"


@dataclass(frozen=True)
class DemoFamily:
    """The family in examples/demo and the folder that holds base.cact, router.cact, home.cact, ..."""

    folder: Path
    family: Family


@pytest.fixture(scope="session")
def demo_family(tmp_path_factory: pytest.TempPathFactory) -> DemoFamily:
    family = load_family(DEMO / "family.toml")
    folder = tmp_path_factory.mktemp("demo")
    export_family(family, folder)
    return DemoFamily(folder, family)
