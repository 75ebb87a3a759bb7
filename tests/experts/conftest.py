from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from builder.experts import ExpertPackage, TransformersCausalLM
from tests.experts.tiny_models import llama, package_for


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices are faster on one thread, and other tests keep the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model() -> TransformersCausalLM:
    """A tiny Llama of three layers, all routed, with an empty registry."""
    return TransformersCausalLM(llama())


@pytest.fixture
def package(model: TransformersCausalLM) -> ExpertPackage:
    """Two experts in each layer of `model`, in memory."""
    return package_for(model, "code", ("code:0", "code:1"), seed=1)


@pytest.fixture
def directory(package: ExpertPackage, tmp_path: Path) -> Path:
    """`package`, written."""
    package.save(tmp_path / "code")
    return tmp_path / "code"
