from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from builder.cact.reader import read_container
from builder.reference.dispatcher import Family
from builder.reference.session import ReferenceModel
from tests.parity.random_models import GEOMETRIES, write_random_model
from tests.parity.recording import Response, dispatch_family, read_conversations, run_conversations


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


@pytest.fixture(scope="session")
def family(demo_family) -> Family:
    return dispatch_family(demo_family.family)


@pytest.fixture(scope="session")
def reference_shelf(demo_family) -> ReferenceShelf:
    return ReferenceShelf(demo_family.folder)


@pytest.fixture(scope="session")
def truth(family, reference_shelf) -> list[Response]:
    """(c) with a cache: every conversation, answered by the PyTorch reference."""
    return run_conversations(family, reference_shelf, read_conversations())


@pytest.fixture(scope="session")
def random_files(tmp_path_factory) -> dict[str, Path]:
    """One random model per geometry."""
    folder = tmp_path_factory.mktemp("random")
    return {
        name: write_random_model(folder / f"{name}.cact", geometry, seed)
        for seed, (name, geometry) in enumerate(GEOMETRIES.items())
    }
