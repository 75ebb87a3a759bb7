"""Rungs of the depth ladder: a file opened at a depth is the file that upstream slices at that depth."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from needle.model import export as upstream
from needle.model.architecture import TransformerConfig, ladder_config, ladder_slice

from builder.cact.ladder import rung
from builder.cact.reader import read_container
from builder.cact.sentencepiece_model import read_sentencepiece
from builder.cact.tokenizer import pack_tokenizer
from builder.errors import UsageError
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine, EngineModel
from tests.engine.generation_2 import HEADER, write_generation_2
from tests.parity.compare import ENGINE_TO_REFERENCE, REFERENCE_TO_JAX, distance
from tests.parity.oracle_jax import JaxOracle
from tests.parity.random_models import BASE_CONFIG, TOKENIZER_MODEL, random_params

pytestmark = pytest.mark.slow

CHANGES = {"num_layers": 7, "engram_layers": (1, 3, 6), "global_layers": (3, 5), "mhc_lanes": 3}
CONFIG = TransformerConfig(**{**BASE_CONFIG, **CHANGES})
DEPTHS = range(2, CONFIG.num_layers)
HEADS = ("embedding", "confidence", "router")
IDS = np.random.default_rng(19).integers(1, 1024, 90).tolist()


@pytest.fixture(scope="module")
def sliced(tmp_path_factory) -> dict[int, Path]:
    """By depth: the whole file and its rungs, all by upstream's own functions."""
    params = random_params(CONFIG, HEADS, np.random.default_rng(6))
    tokenizer = pack_tokenizer(read_sentencepiece(TOKENIZER_MODEL))
    folder, paths = tmp_path_factory.mktemp("rungs"), {}
    for depth in (*DEPTHS, CONFIG.num_layers):
        config, part = CONFIG, params
        if depth < CONFIG.num_layers:
            config, part = ladder_config(CONFIG, depth), ladder_slice(params, CONFIG, depth)
        paths[depth] = folder / f"{depth}.cact"
        upstream.write_export(jax.tree.map(np.asarray, part), config, paths[depth], tokenizer=tokenizer)
    return paths


@pytest.fixture(scope="module")
def whole(sliced) -> bytes:
    return sliced[CONFIG.num_layers].read_bytes()


def everything(model: EngineModel) -> list[bytes]:
    session = model.session(len(IDS), model.info.heads)
    session.append(IDS)
    return [session.logits().tobytes(), *(session.head(name).tobytes() for name in model.info.heads)]


def facts(data: bytes) -> tuple:
    container = read_container(data)
    blobs = [(record.name, record.shape, bytes(container.raw(record.name))) for record in container.records]
    header = container.header
    return header.layer_count, header.global_layers, header.sites, blobs


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_rung_is_the_file_that_upstream_slices(engine: Engine, sliced, whole, depth):
    model = engine.open(whole, depth=depth)
    assert (model.info.layer_count, model.info.heads) == (depth, HEADS)
    assert everything(model) == everything(engine.open(sliced[depth].read_bytes()))


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_reference_cuts_the_same_tensors(sliced, whole, depth):
    assert facts(bytes(rung(read_container(whole), depth).data)) == facts(sliced[depth].read_bytes())


def test_all_layers_are_the_file_itself(engine, whole):
    assert everything(engine.open(whole, depth=CONFIG.num_layers)) == everything(engine.open(whole))
    container = read_container(whole)
    assert rung(container, CONFIG.num_layers) is container


def test_a_rung_takes_less_memory(engine, whole):
    """What it leaves out is checked, but gets neither memory nor cache."""
    assert engine.open(whole, depth=2).memory_bytes < engine.open(whole).memory_bytes


def test_upstreams_model_says_the_same_at_a_depth(engine, sliced, whole):
    expected = JaxOracle(sliced[4]).logits(IDS)[-1]
    reference = ReferenceModel(read_container(whole), depth=4).session(len(IDS))
    ours = engine.open(whole, depth=4).session(len(IDS))
    for session, limit in ((reference, REFERENCE_TO_JAX), (ours, ENGINE_TO_REFERENCE)):
        session.append(IDS)
        assert distance(session.logits(), expected) < limit
        assert session.logits().argmax() == expected.argmax()


def test_needle_rs_says_the_same_tokens_at_a_depth(engine, sliced, whole):
    needle_rs = pytest.importorskip("needle_rs")
    peer = needle_rs.V3Engine.load_with_depth(str(sliced[CONFIG.num_layers]), 4)
    expected = list(peer.generate("turn on the light", "[]", max_new_tokens=40)["token_ids"])
    model = engine.open(whole, depth=4)
    text = "<|im_start|>user\n<tools>[]</tools>\nturn on the light<|im_end|>\n<|im_start|>assistant\n"
    session = model.session(CONFIG.max_seq_len)
    session.append([model.info.bos_id, *model.encode(text)])
    found = []
    while len(found) < len(expected):
        found.append(int(session.logits().argmax()))
        session.append(found[-1:])
    assert found == expected
    assert len(set(found)) > 5


@pytest.mark.parametrize("depth", [-1, 0, 1, 8, 2**40])
def test_a_depth_that_the_file_does_not_have_is_refused(engine, whole, depth):
    for refuse in (
        lambda: engine.open(whole, name="base.cact", depth=depth),
        lambda: ReferenceModel(read_container(whole), depth=depth),
    ):
        with pytest.raises(UsageError, match=rf"depth: is {depth}, must be 2 (or more|to 7)") as caught:
            refuse()
        assert caught.value.code == "bad_depth"


def test_generation_2_has_no_ladder(engine):
    data = write_generation_2(HEADER, seed=28)
    for refuse in (lambda: engine.open(data, depth=2), lambda: rung(read_container(data), 2)):
        with pytest.raises(UsageError, match=r"depth: is 2, must be .*4") as caught:
            refuse()
        assert caught.value.code == "bad_depth"
    assert engine.open(data, depth=4).info.layer_count == 4
