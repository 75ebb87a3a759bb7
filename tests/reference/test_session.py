from __future__ import annotations

import numpy as np
import pytest
import torch

from builder.errors import ContainerError, SessionError, UsageError
from builder.reference.generation import generate
from builder.reference.sampling import log_softmax
from builder.reference.session import PREFILL_TOKENS, CachedSession, HistorySession, ReferenceModel
from builder.runtime.interface import Detokenizer, Model, Sampling, Session

PROMPT = list(range(20, 20 + 2 * PREFILL_TOKENS + 5))


@pytest.fixture(scope="module")
def cached(random_container):
    return ReferenceModel(random_container)


@pytest.fixture(scope="module")
def uncached(random_container):
    return ReferenceModel(random_container, use_cache=False)


@pytest.fixture(params=["cached", "uncached"])
def model(request):
    return request.getfixturevalue(request.param)


def test_the_reference_has_the_shape_of_a_running_model(model):
    shaped: Model = model
    session: Session = shaped.session(8)
    detokenizer: Detokenizer = shaped.detokenizer()
    for value, protocol in ((model, Model), (session, Session), (detokenizer, Detokenizer)):
        members = [name for name in vars(protocol) if not name.startswith("_")]
        assert [name for name in members if not hasattr(type(value), name) and not hasattr(value, name)] == []


def test_info_says_what_the_container_says(model, random_container):
    header = random_container.header
    assert (model.info.tag, model.info.layer_count, model.info.d_model) == (header.tag, 5, 128)
    assert (model.info.vocab_count, model.info.logit_count, model.info.piece_count) == (1024, 1024, 1024)
    assert (model.info.pad_id, model.info.eos_id, model.info.bos_id, model.info.unk_id) == (0, 1, 2, 3)
    assert (model.info.im_start_id, model.info.im_end_id) == (4, 5)
    assert (model.info.tool_call_open_id, model.info.tool_call_close_id) == (10, 11)
    assert model.memory_bytes == 4 * sum(p.numel() for p in model.network.parameters())


@pytest.mark.slow
def test_both_ways_say_the_same_tokens_from_the_same_logits(cached, uncached):
    with_cache = generate(cached, PROMPT, 40, Sampling(), keep_logits=True)
    without = generate(uncached, PROMPT, 40, Sampling(), keep_logits=True)
    assert with_cache.token_ids == without.token_ids
    assert len(with_cache.token_ids) == 40
    np.testing.assert_allclose(with_cache.logits, without.logits, rtol=0, atol=2e-5)
    assert isinstance(cached.session(8), CachedSession)
    assert isinstance(uncached.session(8), HistorySession)


def test_a_score_is_the_log_probability_of_the_ids_and_changes_nothing(model):
    session = model.session(100)
    session.append(PROMPT)
    before, candidate = session.logits(), [7, 900, 31]
    score = session.score(candidate)
    np.testing.assert_array_equal(session.logits(), before)
    assert session.position == len(PROMPT)
    with torch.inference_mode():
        rows = model.network(torch.tensor([PROMPT + candidate]))[0].numpy()[len(PROMPT) - 1 :]
    expected = sum(log_softmax(row)[token_id] for row, token_id in zip(rows, candidate, strict=False))
    assert score == pytest.approx(expected, abs=1e-4)
    assert session.score([]) == 0.0


def test_rewinding_returns_to_the_mark_any_number_of_times(model):
    session = model.session(100)
    session.append(PROMPT)
    session.mark()
    marked = session.logits()
    for tail in ([5, 6], [9]):
        session.append(tail)
        assert not np.array_equal(session.logits(), marked)
        session.rewind()
        np.testing.assert_array_equal(session.logits(), marked)
        assert session.position == len(PROMPT)


def test_after_a_reset_the_cache_is_fresh(model):
    session, other = model.session(100), model.session(100)
    session.append(PROMPT)
    session.reset()
    assert session.position == 0
    with pytest.raises(SessionError):
        session.logits()
    session.append(PROMPT[3:20])
    other.append(PROMPT[3:20])
    np.testing.assert_array_equal(session.logits(), other.logits())


def test_sessions_of_one_model_do_not_disturb_each_other(model):
    alone, a, b = (model.session(100) for _ in range(3))
    alone.append(PROMPT)
    for start in range(0, len(PROMPT), PREFILL_TOKENS):
        a.append(PROMPT[start : start + PREFILL_TOKENS])
        b.append([40 + start])
    np.testing.assert_array_equal(a.logits(), alone.logits())


def test_logits_are_a_copy(model):
    session = model.session(8)
    session.append([5])
    session.logits()[:] = 0
    assert session.logits().any()


def test_a_failed_append_leaves_the_session_as_it_was(model):
    session = model.session(4)
    session.append([5, 6])
    before = session.logits()
    for bad, code in (([7, 1024], "bad_token"), ([-1], "bad_token"), ([7, 8, 9], "context_full")):
        for method in (session.append, session.score):
            with pytest.raises(SessionError) as caught:
                method(bad)
            assert caught.value.code == code
    np.testing.assert_array_equal(session.logits(), before)
    session.append([7, 8])
    assert session.position == 4


def test_what_needs_a_token_or_a_mark_says_so(model):
    session = model.session(4)
    calls = (session.logits, lambda: session.score([5]), lambda: session.sample(Sampling()), session.rewind)
    for call in calls:
        with pytest.raises(SessionError) as caught:
            call()
        assert caught.value.code == "bad_state"


@pytest.mark.parametrize("capacity", [0, -1, 161])
def test_a_capacity_that_the_model_does_not_have_is_refused(model, capacity):
    with pytest.raises(UsageError, match="1 to 160") as caught:
        model.session(capacity)
    assert caught.value.code == "bad_argument"


def test_a_container_without_a_tokenizer_cannot_chat(random_container):
    class Mute:
        subject = "mute.cact"
        tokenizer_blob = None

    with pytest.raises(ContainerError, match=r"mute\.cact: tokenizer"):
        ReferenceModel(Mute())
