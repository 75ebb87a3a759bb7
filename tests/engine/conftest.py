from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from builder.cact.reader import read_container
from builder.cact.writer import blobs_of, cq_blob, write_container
from builder.runtime.engine import Engine
from builder.runtime.host import Instance
from tests.made_once import MadeOnce
from tests.parity.random_models import GEOMETRIES, Geometry, write_random_model

TINY = Geometry(
    {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "qk_head_dim": 4, "v_head_dim": 4}
    | {"max_seq_len": 64, "engram_slots": 5, "engram_layers": (1,), "global_layers": (1,)},
    heads=("embedding", "confidence", "router"),
)

WIDTHS = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "gate_proj": 5, "key_proj": 5}
"""Tensors of `every_width` by the last part of their names; 5 is ternary, all others have 4 bits."""
STORED_CODES = {1: [0, 1], 2: [0, 1, 2, 3], 3: list(range(8)), 5: [0, 1, 3]}

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "engine" / "build.py"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """The reference's small matrices are faster on one thread, and other tests keep the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def build() -> ModuleType:
    """engine/build.py as a module; it lies outside of every package."""
    spec = importlib.util.spec_from_file_location("engine_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine_build"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def modules(build: ModuleType, made_once: MadeOnce) -> dict[str, bytes]:
    """The modules of the package by name, built from the present sources."""
    paths = made_once("modules", build.compile_modules).iterdir()
    return {path.stem: path.read_bytes() for path in paths}


@pytest.fixture(scope="session")
def wasm(modules: dict[str, bytes]) -> bytes:
    """The engine that every visitor can run."""
    return modules["engine"]


@pytest.fixture(scope="session")
def relaxed_wasm(modules: dict[str, bytes]) -> bytes:
    """The engine for browsers with relaxed SIMD."""
    return modules["engine_relaxed"]


@pytest.fixture(scope="session")
def maker(modules: dict[str, bytes]) -> bytes:
    """The patch maker."""
    return modules["maker"]


@pytest.fixture(scope="session")
def engine(wasm: bytes) -> Engine:
    return Engine(wasm)


@pytest.fixture(scope="session")
def probe_engine(build: ModuleType, made_once: MadeOnce) -> Engine:
    probes = [HERE / "probe.c"]
    return Engine(made_once("probe", lambda path: build.compile_wasm(path, probes=probes)).read_bytes())


@pytest.fixture(scope="session")
def relaxed_probe_engine(build: ModuleType, made_once: MadeOnce) -> Engine:
    def compile_probe(path: Path) -> None:
        build.compile_wasm(path, relaxed=True, probes=[HERE / "probe.c"])

    return Engine(made_once("relaxed-probe", compile_probe).read_bytes())


@pytest.fixture(params=["plain", "relaxed"])
def any_probe(request: pytest.FixtureRequest) -> Instance:
    """A probe of either module: with relaxed SIMD, or without."""
    name = "probe_engine" if request.param == "plain" else "relaxed_probe_engine"
    engine: Engine = request.getfixturevalue(name)
    return engine.instance()


@pytest.fixture
def probe(probe_engine: Engine) -> Instance:
    return probe_engine.instance()


@pytest.fixture(scope="session")
def random_files(made_once: MadeOnce) -> dict[str, Path]:
    """One random model per geometry, by upstream's exporter."""

    def write_all(folder: Path) -> None:
        folder.mkdir()
        for seed, (name, geometry) in enumerate(GEOMETRIES.items(), start=10):
            write_random_model(folder / f"{name}.cact", geometry, seed)

    folder = made_once("engine-random", write_all)
    return {name: folder / f"{name}.cact" for name in GEOMETRIES}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A generation-3 file of 120 KB with everything in it."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.cact"
    return write_random_model(path, TINY, seed=4).read_bytes()


@pytest.fixture(scope="session")
def gcc() -> str:
    """The host's gcc: the native builds need it."""
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("needs gcc on PATH for the native build")
    return found


@pytest.fixture(scope="session")
def every_width(random_files: dict[str, Path]) -> bytes:
    """A model in which projections of all code widths, ternary included, have random codes."""
    container = read_container(random_files["everything"])
    rng = np.random.default_rng(12)
    blobs = blobs_of(container)
    for record in container.records:
        bits = WIDTHS.get(record.name.rpartition(".")[2])
        if bits:
            codes = rng.choice(STORED_CODES[bits], container.codes(record.name).shape).astype(np.uint8)
            blobs[record.index] = cq_blob(codes, container.norms(record.name), bits, record.shape[1])
    return write_container(container.header, blobs)


@pytest.fixture(scope="session")
def tied_container(tiny: bytes) -> bytes:
    """A model whose embedding rows are all the same, so that all logits are equal."""
    container = read_container(tiny)
    blobs = blobs_of(container)
    codes, norms = container.codes("embedding"), container.norms("embedding")
    blobs[0] = cq_blob(np.repeat(codes[:1], len(codes), 0), np.repeat(norms[:1], len(norms), 0), 4, 32)
    return write_container(container.header, blobs)
