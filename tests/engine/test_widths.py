"""Every width of codes, in all matrices at once and as published files mix them, in both generations."""

from __future__ import annotations

import numpy as np
import pytest

from builder.cact.layout import Kind
from builder.cact.quantise import quantise
from builder.cact.reader import read_container
from builder.cact.writer import blobs_of, cq_blob, write_container
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine
from tests.engine.generation_2 import HEADER, write_generation_2
from tests.parity.compare import ENGINE_TO_REFERENCE, distance

TERNARY = 5
IDS = np.random.default_rng(23).integers(1, 1024, 80).tolist()
PUBLISHED = {"embedding": 4, "mhc": 4, "heads": 4, "": 2}
"""Part of a name -> bits, as in the published files; the first that matches counts."""
STYLES = {
    **{f"{bits} bits": {"": bits} for bits in (1, 2, 3, 4)},
    **{"ternary": {"": TERNARY}, "published": PUBLISHED},
}


def requantised(data: bytes, style: dict[str, int]) -> bytes:
    """The container with all of its matrices in codes of other widths."""
    container = read_container(data)
    blobs = blobs_of(container)
    for record in container.records:
        if record.kind is Kind.CQ:
            bits = next(bits for part, bits in style.items() if part in record.name)
            codes, norms = quantise(container.tensor(record.name), bits)
            blobs[record.index] = cq_blob(codes, norms, bits, record.shape[1])
    return write_container(container.header, blobs)


@pytest.fixture(scope="module", params=[2, 3])
def whole(request, random_files) -> bytes:
    if request.param == 2:
        return write_generation_2(HEADER, seed=29)
    return random_files["everything"].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_the_engine_says_what_the_reference_says(engine: Engine, whole: bytes, style: str):
    data = requantised(whole, STYLES[style])
    assert {record.bits for record in read_container(data).records} == {0, *STYLES[style].values()}
    found, expected = engine.open(data), ReferenceModel(read_container(data))
    ours, theirs = (model.session(len(IDS), model.info.heads) for model in (found, expected))
    for half in (IDS[:40], IDS[40:]):
        ours.append(half)
        theirs.append(half)
        assert distance(ours.logits(), theirs.logits()) < ENGINE_TO_REFERENCE
        assert ours.logits().argmax() == theirs.logits().argmax()
    for name in found.info.heads:
        assert distance(ours.head(name), theirs.head(name)) < ENGINE_TO_REFERENCE
