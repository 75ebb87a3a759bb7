"""Generation 2: the same tokens as needle-rs, and a KV window that forgets exactly what it must."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from builder.errors import UsageError
from builder.runtime.engine import NUMERICS, Engine, EngineModel
from tests.engine.generation_2 import HEADER, write_generation_2

NEW_TOKENS = 48
QUERY = "turn on the lamp in the kitchen and play some music please, then set a timer for five minutes"
ONE_LAYER = dataclasses.replace(HEADER, layer_count=1, sites=(0,))
"""With one layer a token's key and value depend on the token and the ids just before it, on nothing older."""
REACH = 12
"""Tokens whose engrams an id takes part in: 3 ids, and a convolution of 4 taps, 3 apart."""
LENGTH, PINNED = 100, 30
IDS = np.random.default_rng(5).integers(20, 1000, LENGTH).tolist()


def continuation(model: EngineModel, prompt: list[int], count: int) -> list[int]:
    session = model.session(len(prompt) + count)
    session.append(prompt)
    found = []
    for _ in range(count):
        found.append(int(session.logits().argmax()))
        session.append(found[-1:])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kv_window", [24, 2048])
def test_a_generation_2_model_answers_as_needle_rs_does(engine: Engine, tmp_path: Path, kv_window: int):
    """The prompt is longer than the small window; needle-rs windows as well, and pins nothing."""
    needle_rs = pytest.importorskip("needle_rs")
    path = tmp_path / "model.cact"
    path.write_bytes(write_generation_2(dataclasses.replace(HEADER, kv_window=kv_window), seed=22))
    peer = needle_rs.V2Engine.load(str(path)).generate(QUERY, "[]", max_new_tokens=NEW_TOKENS)
    model = engine.open(path.read_bytes())
    text = f"<|im_start|>user\n<tools>[]</tools>\n{QUERY}<|im_end|>\n<|im_start|>assistant\n"
    prompt = [model.info.bos_id, *model.encode(text)]
    assert len(prompt) == peer["prompt_tokens"] > 24 + REACH
    found = continuation(model, prompt, len(peer["token_ids"]))
    assert found == list(peer["token_ids"])
    assert len(set(found)) > 8


@pytest.fixture(scope="module", params=NUMERICS)
def one_layer(engine: Engine, request: pytest.FixtureRequest) -> EngineModel:
    return engine.open(write_generation_2(ONE_LAYER, seed=22), numerics=request.param)


def last_logits(model: EngineModel, ids: list[int], pinned: int) -> bytes:
    session = model.session(LENGTH)
    session.pin(pinned)
    session.append(ids)
    return session.logits().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [0, PINNED, 64, 70])
def test_a_token_sees_the_pinned_ones_and_its_window_and_no_others(one_layer: EngineModel, pinned: int):
    expected = last_logits(one_layer, IDS, pinned)
    seen = [j < pinned or j >= LENGTH - ONE_LAYER.kv_window for j in range(LENGTH)]
    for changed in range(LENGTH - REACH):
        ids = [*IDS[:changed], IDS[changed] % 900 + 50, *IDS[changed + 1 :]]
        same = last_logits(one_layer, ids, pinned) == expected
        if seen[changed]:
            assert not same, changed
        elif not any(seen[changed : changed + REACH]):
            assert same, changed


@pytest.mark.slow
def test_with_everything_pinned_the_window_does_not_matter(engine: Engine):
    wide = dataclasses.replace(HEADER, kv_window=0)
    found = last_logits(engine.open(write_generation_2(HEADER, seed=23)), IDS, LENGTH)
    assert found == last_logits(engine.open(write_generation_2(wide, seed=23)), IDS, 0)


@pytest.mark.slow
def test_a_rewound_session_forgets_a_later_pin(engine: Engine):
    model = engine.open(write_generation_2(HEADER, seed=24))
    expected = last_logits(model, IDS, 10)
    session = model.session(LENGTH)
    session.pin(10)
    session.append(IDS[:10])
    session.mark()
    session.append(IDS[10:60])
    session.pin(60)
    session.rewind()
    session.append(IDS[10:])
    assert session.logits().tobytes() == expected


def test_more_tokens_than_the_cache_holds_cannot_be_pinned(one_layer: EngineModel):
    with pytest.raises(UsageError) as caught:
        one_layer.session(10).pin(11)
    assert caught.value.code == "bad_argument"


@pytest.mark.slow
@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_of_any_size_give_the_same_bits_across_the_window(engine: Engine, block: int, numerics: str):
    model = engine.open(write_generation_2(HEADER, seed=25), numerics=numerics)
    session = model.session(LENGTH)
    session.pin(PINNED)
    for start in range(0, LENGTH, block):
        session.append(IDS[start : start + block])
    assert session.logits().tobytes() == last_logits(model, IDS, PINNED)
