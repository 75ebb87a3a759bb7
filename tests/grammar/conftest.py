from __future__ import annotations

import pytest

from builder.cact.reader import read_container
from builder.reference.grammar import Vocabulary
from builder.reference.tokenizer import ReferenceTokenizer
from builder.runtime.engine import Engine, EngineModel
from tests.grammar.samples import make_model


@pytest.fixture(scope="session")
def container() -> bytes:
    return make_model()


@pytest.fixture(scope="session")
def model(container: bytes) -> EngineModel:
    return Engine().open(container)


@pytest.fixture(scope="session")
def vocabulary(container: bytes, model: EngineModel) -> Vocabulary:
    """The reference's view of the same pieces."""
    blob = read_container(container).tokenizer_blob
    assert blob is not None
    return Vocabulary(ReferenceTokenizer(blob).piece_bytes, model.info)
