"""Generation 2 in PyTorch: upstream's own logits, the tokens of needle-rs, the engine's logits, no cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from builder.cact.reader import read_container
from builder.errors import UsageError
from builder.reference.generation import generate
from builder.reference.generation_2 import walsh
from builder.reference.heads import head_names, open_head
from builder.reference.model import NeedleModel
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.engine.generation_2 import HEADER, write_generation_2
from tests.parity.compare import ENGINE_TO_REFERENCE, REFERENCE_TO_JAX, distance
from tests.parity.golden_generation_2 import GOLDEN, IDS, LOGIT_STEP, POSITIONS, golden_file

NEW_TOKENS = 48
HEAD_TOLERANCE = 2e-6
"""Absolute, on a probability and a vector of length 1."""
QUERY = "turn on the lamp in the kitchen and play some music please, then set a timer for five minutes"
VARIANTS = {
    "as published": ({}, {}),
    "every width": ({}, {"q_proj": 1, "gate_proj": 2, "tables": 2, "v_proj": 3, "phi_res": 3, "out_proj": 5}),
    "padded": (
        {"d_model": 192, "hada_n": 256, "head_count": 6, "kv_head_count": 3, "qk_head_dim": 32}
        | {"v_head_dim": 32, "engram_table_count": 3, "orders": (1, 2, 4), "lane_count": 3},
        {},
    ),
    "no memory but keys and values": (
        {"orders": (1,), "engram_table_count": 1, "engram_conv_taps": 1, "layer_count": 2, "sites": (1,)},
        {},
    ),
    "no window": ({"kv_window": 0, "sites": ()}, {}),
}
"""What differs from `HEADER`, and the widths of codes."""


def variant(name: str) -> bytes:
    header, bits = VARIANTS[name]
    return write_generation_2(dataclasses.replace(HEADER, **header), seed=27, bits=bits)


@pytest.fixture(scope="module")
def data() -> bytes:
    return write_generation_2(HEADER, seed=22)


@pytest.fixture(scope="module")
def cached(data: bytes) -> ReferenceModel:
    return ReferenceModel(read_container(data))


@pytest.fixture(scope="module")
def uncached(data: bytes) -> ReferenceModel:
    return ReferenceModel(read_container(data), use_cache=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text("utf-8")), ids=lambda c: str(c["pinned"]))
def test_upstreams_own_model_of_that_generation_gives_the_same_logits_and_heads(case):
    data = golden_file(case["kv_window"])
    assert hashlib.sha256(data).hexdigest() == case["sha256"]
    container = read_container(data)
    network = NeedleModel(container)
    past = dataclasses.replace(network.empty_past(), pinned=case["pinned"])
    with torch.inference_mode():
        streams, _ = network.extend(torch.tensor([IDS]), past)
        logits = network.readout(streams)[0].numpy()
        cells, _ = network.extend_cells(torch.tensor([IDS]), past)
        heads = {name: open_head(container, name)(cells)[0].numpy() for name in head_names(container)}
    assert logits.argmax(-1).tolist() == case["argmax"]
    kept = logits[list(POSITIONS), ::LOGIT_STEP]
    assert distance(kept, np.array(case["logits"], np.float32)) <= REFERENCE_TO_JAX
    assert set(heads) == set(case["heads"])
    for name, said in heads.items():
        np.testing.assert_allclose(said, case["heads"][name], rtol=0, atol=HEAD_TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("kv_window", [24, 2048])
def test_needle_rs_says_the_same_tokens(tmp_path, kv_window):
    """Its prompt is longer than the small window; it pins nothing."""
    needle_rs = pytest.importorskip("needle_rs")
    path = tmp_path / "model.cact"
    path.write_bytes(write_generation_2(dataclasses.replace(HEADER, kv_window=kv_window), seed=22))
    peer = list(
        needle_rs.V2Engine.load(str(path)).generate(QUERY, "[]", max_new_tokens=NEW_TOKENS)["token_ids"]
    )
    model = ReferenceModel(read_container(path))
    text = f"<|im_start|>user\n<tools>[]</tools>\n{QUERY}<|im_end|>\n<|im_start|>assistant\n"
    ids = [model.info.bos_id, *model.encode(text)]
    assert generate(model, ids, NEW_TOKENS, Sampling()).token_ids == peer
    assert len(set(peer)) > 8


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_the_engine_gives_close_logits_with_and_without_pinned_tokens(name):
    data = variant(name)
    models = Engine().open(data), ReferenceModel(read_container(data))
    for pinned in (0, 30):
        sessions = [model.session(len(IDS)) for model in models]
        rows: list[list[np.ndarray]] = [[], []]
        for session, logits in zip(sessions, rows, strict=True):
            session.pin(pinned)
            for start, stop in pairwise((0, 1, 33, 70, 99, 100)):
                session.append(IDS[start:stop])
                logits.append(session.logits())
        ours, truth = map(np.stack, rows)
        assert distance(ours, truth) <= ENGINE_TO_REFERENCE
        assert ours.argmax(-1).tolist() == truth.argmax(-1).tolist()


def greedy(model: ReferenceModel, pinned: int) -> list[int]:
    session = model.session(len(IDS) + 16)
    session.pin(pinned)
    session.append(IDS)
    found = []
    for _ in range(16):
        found.append(session.sample(Sampling()))
        session.append(found[-1:])
    return found


@pytest.mark.slow
def test_both_ways_say_the_same_tokens_and_pinning_changes_them(cached, uncached):
    answers = {pinned: greedy(cached, pinned) for pinned in (0, 30)}
    assert answers[0] != answers[30]
    assert all(greedy(uncached, pinned) == answer for pinned, answer in answers.items())


@pytest.mark.slow
def test_a_pin_counts_for_the_tokens_that_come_after_it(cached, uncached, data):
    rows = []
    for model in (cached, uncached, Engine().open(data)):
        session = model.session(len(IDS))
        session.append(IDS[:40])
        session.mark()
        session.pin(35)
        session.append(IDS[40:70])
        session.rewind()
        session.append(IDS[40:80])
        session.pin(30)
        session.append(IDS[80:])
        rows.append(session.logits())
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=2e-5)
    assert distance(rows[2], rows[0]) <= ENGINE_TO_REFERENCE
    assert distance(last_logits(cached, 0), rows[0]) > ENGINE_TO_REFERENCE
    assert distance(last_logits(cached, 30), rows[0]) > ENGINE_TO_REFERENCE


def last_logits(model: ReferenceModel, pinned: int) -> np.ndarray:
    session = model.session(len(IDS))
    session.pin(pinned)
    session.append(IDS)
    return session.logits()


def test_a_reset_session_has_nothing_pinned(cached):
    session = cached.session(len(IDS))
    session.pin(30)
    session.append(IDS)
    session.reset()
    session.append(IDS)
    np.testing.assert_array_equal(session.logits(), last_logits(cached, 0))


@pytest.mark.slow
def test_members_share_a_prefill_only_with_the_same_pin(data):
    shared = ReferenceModel(read_container(data))
    member = ReferenceModel(read_container(data), shared=shared.share_prefill())
    for pinned in (0, 30):
        alone = last_logits(ReferenceModel(read_container(data)), pinned)
        for model in (shared, member):
            np.testing.assert_array_equal(last_logits(model, pinned), alone)


@pytest.mark.parametrize("token_count", [-1, 11])
def test_what_the_cache_does_not_hold_cannot_be_pinned(cached, token_count):
    with pytest.raises(UsageError, match=r"session: token_count: is .*, must be 0 to 10") as caught:
        cached.session(10).pin(token_count)
    assert caught.value.code == "bad_argument"


def test_the_transform_is_sylvesters_matrix(cached):
    signs = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(8)] for i in range(8)])
    torch.testing.assert_close(walsh(torch.eye(8)), signs / 8**0.5)
