from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from builder.cact.reader import Container, read_container
from tests.parity.random_models import GEOMETRIES, write_random_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices are faster on one thread, and other tests keep the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def random_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with every part alive, three heads, five layers and a window of 24 tokens."""
    path = tmp_path_factory.mktemp("random") / "everything.cact"
    return write_random_model(path, GEOMETRIES["everything"], seed=1)


@pytest.fixture(scope="session")
def random_container(random_file: Path) -> Container:
    return read_container(random_file)
