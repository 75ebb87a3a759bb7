from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from builder.cact.reader import read_container
from builder.reference.dispatcher import Family
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine, EngineModel
from tests.conftest import DemoFamily
from tests.made_once import MadeOnce
from tests.parity.random_models import GEOMETRIES, write_random_model
from tests.parity.recording import (
    Response,
    dispatch_family,
    read_conversations,
    run_conversations,
    unlike_conversations,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices are faster on one thread, and other tests keep the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class ReferenceShelf:
    """The demo family in PyTorch; each member is opened once."""

    def __init__(self, folder: Path, *, use_cache: bool = True) -> None:
        self._folder, self._use_cache = folder, use_cache
        self._models: dict[str, ReferenceModel] = {}

    def open(self, member_id: str) -> ReferenceModel:
        if member_id not in self._models:
            container = read_container(self._folder / f"{member_id}.cact")
            self._models[member_id] = ReferenceModel(container, use_cache=self._use_cache)
        return self._models[member_id]


class EngineShelf:
    """The demo family in `engine.wasm`, one instance per member; each is opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._engine = folder, Engine()
        self._models: dict[str, EngineModel] = {}

    def open(self, member_id: str) -> EngineModel:
        if member_id not in self._models:
            self._models[member_id] = self._engine.open((self._folder / f"{member_id}.cact").read_bytes())
        return self._models[member_id]


@pytest.fixture(scope="session")
def family(demo_family) -> Family:
    return dispatch_family(demo_family.family)


@pytest.fixture(scope="session")
def reference_shelf(demo_family) -> ReferenceShelf:
    return ReferenceShelf(demo_family.folder)


@pytest.fixture(scope="session")
def full_history(reference_shelf):
    """(member) -> (ids) -> logits of every position, by the PyTorch model without a cache."""

    def of_member(member):
        network = reference_shelf.open(member).network

        def logits(ids):
            with torch.inference_mode():
                return network(torch.tensor([ids]))[0].numpy()

        return logits

    return of_member


def recorded(made_once: MadeOnce, name: str, run: Callable[[], list[Response]]) -> list[Response]:
    """The responses of a run that one process makes and every process reads."""
    return pickle.loads(made_once(name, lambda path: path.write_bytes(pickle.dumps(run()))).read_bytes())


def run_engine(made_once: MadeOnce, demo: DemoFamily) -> list[Response]:
    """(d): every conversation, answered by `engine.wasm` in wasmtime."""

    def run() -> list[Response]:
        family, shelf = dispatch_family(demo.family), EngineShelf(demo.folder)
        return run_conversations(family, shelf, read_conversations())

    return recorded(made_once, "engine-run", run)


@pytest.fixture(scope="session")
def truth(made_once, family, reference_shelf) -> list[Response]:
    """(c) with a cache: a conversation of every kind, answered by the PyTorch reference."""
    return recorded(
        made_once, "truth", lambda: run_conversations(family, reference_shelf, unlike_conversations())
    )


@pytest.fixture(scope="session")
def engine_run(made_once, demo_family) -> list[Response]:
    return run_engine(made_once, demo_family)


class RandomFiles:
    """One random model per geometry, exported when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Path:
        path = self._folder / f"{name}.cact"
        if not path.exists():
            write_random_model(path, GEOMETRIES[name], seed=sorted(GEOMETRIES).index(name))
        return path


@pytest.fixture(scope="session")
def random_files(tmp_path_factory) -> RandomFiles:
    return RandomFiles(tmp_path_factory.mktemp("random"))
