"""`engine.wasm` in wasmtime against the PyTorch reference: routes, tokens, envelopes equal, logits close."""

from __future__ import annotations

import numpy as np
import pytest

from builder.cact.reader import read_container
from builder.errors import SessionError
from builder.reference.dispatcher import Dispatcher
from builder.reference.generation import generate
from builder.reference.sampling import draw
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.parity.compare import (
    ENGINE_TO_REFERENCE,
    SCORE_TO_ENGINE,
    compare_by_forcing,
    distance,
)
from tests.parity.conftest import EngineShelf
from tests.parity.random_models import EVERY_GEOMETRY
from tests.parity.recording import logits_sha256, read_conversations, run_conversations
from tests.parity.test_random_parity import ANSWER_TOKENS, prompts

MEASURED = ("prefill_tps", "decode_tps", "peak_ram_mb")
ENGINE = Engine()


@pytest.fixture(params=EVERY_GEOMETRY)
def pair(request, random_files):
    """One random model, in the engine and in PyTorch."""
    path = random_files[request.param]
    return ENGINE.open(path.read_bytes()), ReferenceModel(read_container(path))


@pytest.mark.slow
def test_random_models_say_the_same_tokens_from_close_logits(pair):
    engine, reference = pair
    for _, ids in prompts(reference):
        ours = generate(engine, ids, ANSWER_TOKENS, Sampling(), keep_logits=True)
        truth = generate(reference, ids, ANSWER_TOKENS, Sampling(), keep_logits=True)
        assert ours.token_ids == truth.token_ids
        assert distance(ours.logits, truth.logits) <= ENGINE_TO_REFERENCE


def test_random_models_score_alike(pair):
    [(_, ids)] = prompts(pair[1], count=1)
    scores = []
    for model in pair:
        session = model.session(len(ids) + 40)
        session.append(ids)
        scores.append([session.score(range(30, 30 + count)) for count in (0, 1, 2, 40)])
    np.testing.assert_allclose(scores[0], scores[1], rtol=ENGINE_TO_REFERENCE, atol=0)


def test_an_id_that_has_no_logit_cannot_be_scored(random_files):
    path = random_files["no_taps_out_vocab"]
    for model in (ENGINE.open(path.read_bytes()), ReferenceModel(read_container(path))):
        session = model.session(9)
        session.append([5, 1023])
        before = session.logits()
        with pytest.raises(SessionError) as caught:
            session.score([5, 700])
        assert caught.value.code == "bad_token"
        np.testing.assert_array_equal(session.logits(), before)


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.7}, {"temperature": 3.0, "top_k": 7}, {"temperature": 1.5, "top_p": 0.8}],
)
def test_from_the_same_logits_a_seed_draws_the_same_ids(pair, sampling):
    engine, reference = pair
    [(_, ids)] = prompts(reference, count=1)
    for seed in (0, 1, 2**64 - 1):
        theirs = Sampling(**{"temperature": 1.0, **sampling}, random_state=seed)
        ours = Sampling(**{"temperature": 1.0, **sampling}, random_state=seed)
        session = engine.session(len(ids) + 30)
        session.append(ids)
        for _ in range(30):
            token_id = session.sample(ours)
            assert draw(session.logits(), theirs) == token_id
            assert ours.random_state == theirs.random_state
            session.append([token_id])


@pytest.fixture(scope="module")
def same_run(truth, engine_run):
    """What the engine said where the reference was asked too."""
    asked = {response.name for response in truth}
    return [response for response in engine_run if response.name in asked]


@pytest.mark.slow
def test_routes_and_answers_are_the_same(truth, same_run):
    for ours, theirs in zip(same_run, truth, strict=True):
        a, b = (response.answer.to_json() for response in (ours, theirs))
        assert {**a, **dict.fromkeys(MEASURED)} == {**b, **dict.fromkeys(MEASURED)}, ours.name
        assert {**ours.record.to_json(), "scores": 0} == {**theirs.record.to_json(), "scores": 0}, ours.name


@pytest.mark.slow
def test_scores_and_logits_are_close(truth, same_run):
    distances, differences = [], []
    for ours, theirs in zip(same_run, truth, strict=True):
        for a, b in zip(ours.record.scores, theirs.record.scores, strict=True):
            differences.append(0.0 if a is None and b is None else abs(a - b))
        for log, expected in zip(ours.sessions, theirs.sessions, strict=True):
            assert log.prompt_ids == expected.prompt_ids
            assert log.drawn_ids == expected.drawn_ids
            if log.drawn_ids:
                distances.append(distance(np.stack(log.logits), np.stack(expected.logits)))
    assert max(distances) <= ENGINE_TO_REFERENCE
    assert max(differences) <= SCORE_TO_ENGINE
    assert len(distances) > 70


@pytest.mark.slow
def test_the_reference_prefers_every_id_that_the_engine_drew(engine_run, truth, full_history):
    asked = {response.name for response in truth}
    others = (response for response in engine_run if response.name not in asked)
    other_tokens, distances = compare_by_forcing(others, full_history)
    assert other_tokens == []
    assert max(distances) <= ENGINE_TO_REFERENCE
    assert len(distances) + len(asked) > 150


@pytest.mark.slow
def test_an_answer_does_not_depend_on_what_was_said_before(family, demo_family, engine_run):
    backwards = list(reversed(read_conversations()))[:25]
    found = run_conversations(family, EngineShelf(demo_family.folder), backwards)
    expected = {response.name: response for response in engine_run}
    for response in found:
        assert response.record == expected[response.name].record
        for log, earlier in zip(response.sessions, expected[response.name].sessions, strict=True):
            assert list(map(logits_sha256, log.logits)) == list(map(logits_sha256, earlier.logits))
            assert log.scores == earlier.scores


@pytest.mark.slow
def test_the_base_that_takes_over_answers_bit_for_bit_as_if_alone(family, demo_family, engine_run):
    alone = Dispatcher(type(family)(family.base), EngineShelf(demo_family.folder))
    turns = {conversation["id"]: conversation["turns"] for conversation in read_conversations()}
    taken_over = [response for response in engine_run if response.record.overflow and response.answer.success]
    assert len(taken_over) >= 4
    for response in taken_over:
        answer, _ = alone.respond(turns[response.conversation][: response.turn + 1])
        assert answer.token_ids == response.answer.token_ids
