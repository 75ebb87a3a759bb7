"""What ONNX Runtime computes from an exported file, against the PyTorch reference."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from builder.cact.reader import Container, read_container
from builder.errors import ContainerError
from builder.onnx import export
from builder.onnx.export import export_model
from builder.onnx.weights import tensor
from builder.reference.generation import generate
from builder.reference.prompts import render_prompt
from builder.reference.session import ReferenceModel
from builder.runtime.interface import Sampling
from tests.onnx.oracle_onnxruntime import OnnxSession
from tests.parity.compare import distance
from tests.parity.random_models import EVERY_GEOMETRY, GEOMETRIES, write_random_model
from tests.parity.recording import dispatch_family
from tests.reference.test_generation_2 import IDS, VARIANTS, variant

ONNX_TO_REFERENCE = 2e-6
"""Relative rms. Two float32 programs that add in another order differ by about 3e-7 (docs/onnx.md)."""
QUERY = "turn on the bedroom light"
ANSWER_TOKENS = 30
MEMBERS = ["base", *(pytest.param(name, marks=pytest.mark.slow) for name in ("router", "home", "kitchen"))]
MEMBERS += [pytest.param(name, marks=pytest.mark.slow) for name in ("media", "calendar")]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(demo_family) -> Container:
    return read_container(demo_family.folder / "base.cact")


@pytest.fixture(scope="module")
def base_model(base: Container) -> bytes:
    return export_model(base)


@pytest.mark.slow
@pytest.mark.parametrize("member_id", MEMBERS)
def test_a_member_of_the_demo_says_the_same_tokens_from_the_same_logits(demo_family, member_id: str):
    family = dispatch_family(demo_family.family)
    [member] = [m for m in (family.base, family.router, *family.specialists) if m and m.id == member_id]
    container = read_container(demo_family.folder / f"{member_id}.cact")
    model, session = ReferenceModel(container), OnnxSession(export_model(container))
    prompt = [model.info.bos_id, *model.encode(render_prompt(member.prompt, [QUERY], 0))]
    truth = generate(model, prompt, ANSWER_TOKENS, Sampling(), keep_logits=True)
    logits = [session.append(prompt)[0]]
    for token_id in truth.token_ids[: len(truth.logits) - 1]:
        assert int(logits[-1].argmax()) == token_id
        logits.append(session.append([token_id])[0])
    assert int(logits[-1].argmax()) == int(truth.logits[-1].argmax())
    assert distance(np.stack(logits), truth.logits) <= ONNX_TO_REFERENCE


def assert_alike(container: Container, pinned: int = 0) -> None:
    """All logits, the ids given at once and in parts."""
    model = ReferenceModel(container)
    network, session = model.network, OnnxSession(export_model(container), pinned)
    with torch.inference_mode():
        past = dataclasses.replace(network.empty_past(), pinned=pinned)
        truth = network.readout(network.extend(torch.tensor([IDS]), past)[0])[0].numpy()
    assert distance(session.append(IDS, len(IDS)), truth) <= ONNX_TO_REFERENCE
    session.reset()
    parts = [session.append(IDS[a:b], b - a) for a, b in pairwise((0, 1, 3, 40, 41, len(IDS)))]
    assert distance(np.concatenate(parts), truth) <= ONNX_TO_REFERENCE


@pytest.mark.parametrize("geometry", EVERY_GEOMETRY)
def test_random_models_give_the_same_logits(tmp_path: Path, geometry: str):
    assert_alike(read_container(write_random_model(tmp_path / "m.cact", GEOMETRIES[geometry], seed=1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_generation_2_gives_the_same_logits_with_pinned_tokens(name: str):
    assert_alike(read_container(variant(name)), pinned=30)


def test_a_file_passes_the_checker_and_knows_its_source(base: Container, base_model: bytes):
    model = onnx.load_from_string(base_model)
    onnx.checker.check_model(model, full_check=True)
    assert {fact.key: fact.value for fact in model.metadata_props}["max_seq_len"] == str(
        base.header.max_seq_len
    )
    names = {value.name for value in (*model.graph.input, *model.graph.output)}
    assert {"ids", "logit_rows", "logits", "past.layers.5.raw", "present.engrams.0"} <= names
    assert "pinned" not in names


def test_the_same_container_gives_the_same_bytes(base: Container, base_model: bytes):
    assert export_model(base) == base_model


def test_weights_are_those_of_the_container_up_to_rounding(base: Container):
    for name in ("embedding", "layers.0.q_proj", "engrams.0.tables"):
        np.testing.assert_allclose(tensor(base, name), base.tensor(name), rtol=0, atol=2e-7)


def test_a_model_that_no_file_can_hold_is_refused(base: Container, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(export, "MODEL_BYTES_MAX", 1_000_000)
    with pytest.raises(ContainerError, match=r"weights: is 1\d,\d+,\d+ bytes in float32, must be") as caught:
        export_model(base)
    assert caught.value.code == "cact_unsupported"
