"""Random models through programs that share no code: on trained weights almost any numerics agrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder.cact.reader import read_container
from builder.reference.generation import generate
from builder.reference.heads import open_head
from builder.reference.prompts import PromptTemplate, render_prompt
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.parity.compare import ENGINE_TO_REFERENCE, REFERENCE_TO_JAX, distance
from tests.parity.oracle_jax import JaxOracle
from tests.parity.oracle_needle_rs import NeedleRsOracle
from tests.parity.random_models import EVERY_GEOMETRY

WORDS = ("the", "light", "in", "turn on", "Bach", "20", "minutes", "\U0001f4a1", "日本", '"x":{}[]', "no?\n")
ANSWER_TOKENS = 60
HEAD_TOLERANCE = 2e-6
"""Absolute, on values around 1."""


@pytest.fixture(params=EVERY_GEOMETRY)
def geometry(request):
    return request.param


@pytest.fixture
def model(geometry, random_files):
    return ReferenceModel(read_container(random_files[geometry]))


def prompts(model, count=2):
    """Prompts of about 40 tokens made of common words, in the form that needle-rs can render."""
    rng = np.random.default_rng(5)
    for _ in range(count):
        query = " ".join(rng.choice(WORDS, 12)).strip()
        prompt = render_prompt(PromptTemplate(tools='[{"name":"f"}]'), [query], 0)
        yield prompt, [model.info.bos_id, *model.encode(prompt)]


@pytest.mark.slow
def test_needle_rs_says_the_same(geometry, model, random_files):
    engine = NeedleRsOracle(random_files[geometry])
    for prompt, ids in prompts(model):
        ours = generate(model, ids, ANSWER_TOKENS, Sampling()).token_ids
        assert engine.generate(prompt, ANSWER_TOKENS, model.info.tool_call_close_id) == ours


@pytest.mark.slow
def test_jax_gives_the_same_logits_and_the_same_choices(geometry, model, random_files):
    oracle = JaxOracle(random_files[geometry], split_permutations=geometry == "split_permutations", few=True)
    for _, ids in prompts(model):
        made = generate(model, ids, ANSWER_TOKENS, Sampling(), keep_logits=True)
        rows = oracle.logits([*ids, *made.token_ids])
        steps = rows[len(ids) - 1 :][: len(made.logits)]
        assert distance(made.logits, steps) <= REFERENCE_TO_JAX
        assert steps.argmax(-1).tolist()[: len(made.token_ids)] == made.token_ids
        with torch.inference_mode():
            full = model.network(torch.tensor([[*ids, *made.token_ids]]))[0].numpy()
        assert distance(full, rows) <= REFERENCE_TO_JAX
    assert len(set(rows.argmax(-1).tolist())) > 30  # the model is alive


@pytest.mark.slow
def test_without_a_cache_the_tokens_are_the_same(geometry, model, random_files):
    uncached = ReferenceModel(read_container(random_files[geometry]), use_cache=False)
    for _, ids in prompts(model, count=1):
        ours = generate(model, ids, ANSWER_TOKENS, Sampling()).token_ids
        assert generate(uncached, ids, ANSWER_TOKENS, Sampling()).token_ids == ours


@pytest.mark.slow
def test_jax_reads_the_same_from_every_probe_head(random_files):
    container = read_container(random_files["everything"])
    model = ReferenceModel(container)
    [(_, ids)] = prompts(model, count=1)
    theirs = JaxOracle(random_files["everything"]).heads(ids)
    assert set(theirs) == set(container.head_names)
    theirs["confidence"] = 1 / (1 + np.exp(-theirs["confidence"]))
    with torch.inference_mode():
        cells = model.network.cells(torch.tensor([ids]))
        for name in container.head_names:
            ours = open_head(container, name)(cells)[0].numpy()
            np.testing.assert_allclose(ours, theirs[name], rtol=0, atol=HEAD_TOLERANCE)
    engine = Engine().open(random_files["everything"].read_bytes())
    session = engine.session(len(ids), engine.info.heads)
    session.append(ids)
    for name, truth in theirs.items():
        assert distance(session.head(name), truth) <= ENGINE_TO_REFERENCE
