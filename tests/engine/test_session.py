"""Sessions: blocks, marks, scores and failures change nothing that they should not, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import SaguaroError, SessionError, UsageError
from builder.runtime.engine import NUMERICS, EngineModel, EngineSession

LENGTH = 100
CAPACITY = 110
IDS = np.random.default_rng(3).integers(1, 1024, CAPACITY).tolist()
few = settings(deadline=None, max_examples=12)


@pytest.fixture(scope="module", params=NUMERICS)
def model(engine, random_files, request) -> EngineModel:
    return engine.open(random_files["everything"].read_bytes(), numerics=request.param)


@pytest.fixture(scope="module")
def logits(model) -> bytes:
    """After the first LENGTH ids, in one append."""
    return after(model.session(CAPACITY), IDS[:LENGTH])


def after(session: EngineSession, ids: list[int]) -> bytes:
    session.append(ids)
    return session.logits().tobytes()


def refused(code: str, call) -> SaguaroError:
    with pytest.raises(SaguaroError) as info:
        call()
    assert info.value.code == code
    return info.value


@pytest.mark.parametrize("block", [1, 7, 63, 64, 65])
def test_blocks_of_any_size_give_the_same_bits(model, logits, block):
    session = model.session(CAPACITY)
    for start in range(0, LENGTH, block):
        session.append(IDS[start : min(start + block, LENGTH)])
    assert session.logits().tobytes() == logits
    assert session.position == LENGTH


def test_the_capacity_does_not_change_the_bits(model, logits):
    assert after(model.session(LENGTH), IDS[:LENGTH]) == logits
    assert after(model.session(model.info.max_seq_len), IDS[:LENGTH]) == logits


@few
@given(cut=st.integers(0, LENGTH - 1), detour=st.lists(st.integers(0, 1023), max_size=CAPACITY - LENGTH))
def test_a_rewound_session_goes_on_as_if_nothing_had_been_appended(model, logits, cut, detour):
    session = model.session(CAPACITY)
    session.append(IDS[:cut])
    session.mark()
    for _ in range(2):
        session.append(detour)
        session.rewind()
        assert session.position == cut
    assert after(session, IDS[cut:LENGTH]) == logits


@pytest.mark.slow
def test_a_rewound_session_has_the_logits_of_its_mark(model):
    session = model.session(CAPACITY)
    before = after(session, IDS[:20])
    session.mark()
    assert after(session, IDS[20:23]) != before
    session.rewind()
    assert session.logits().tobytes() == before


@few
@given(cut=st.integers(1, LENGTH), guess=st.lists(st.integers(0, 1023), max_size=CAPACITY - LENGTH))
def test_a_score_leaves_the_session_and_its_mark_as_they_were(model, logits, cut, guess):
    session = model.session(CAPACITY)
    session.append(IDS[: cut // 2])
    session.mark()
    before = after(session, IDS[cut // 2 : cut])
    session.score(guess)
    assert session.position == cut
    assert session.logits().tobytes() == before
    assert after(session, IDS[cut:LENGTH]) == logits
    session.rewind()
    assert after(session, IDS[cut // 2 : LENGTH]) == logits


def test_a_score_is_the_sum_of_log_probabilities_one_by_one(model):
    ids = IDS[50:90]
    session, walker = model.session(CAPACITY), model.session(CAPACITY)
    session.append(IDS[:50])
    walker.append(IDS[:50])
    expected = 0.0
    for token_id in ids:
        row = walker.logits().astype(np.float64)
        expected += row[token_id] - row.max() - np.log(np.exp(row - row.max()).sum())
        walker.append([token_id])
    assert session.score(ids) == pytest.approx(expected, rel=1e-12)
    assert session.score([]) == 0.0


def test_a_score_has_the_same_bits_in_blocks_of_any_size(model):
    found = set()
    for capacity in (LENGTH, CAPACITY, 61, 60):
        session = model.session(capacity)
        session.append(IDS[:10])
        found.add(session.score(IDS[10:60]))
    short = model.session(2)
    short.append(IDS[:1])
    assert short.score(IDS[1:2]) == model_score(model, IDS[:1], IDS[1:2])
    assert len(found) == 1


def model_score(model: EngineModel, prompt: list[int], ids: list[int]) -> float:
    """In a session with more room than is needed."""
    session = model.session(CAPACITY)
    session.append(prompt)
    return session.score(ids)


def test_a_reset_session_is_a_fresh_one(model, logits):
    session = model.session(CAPACITY)
    session.append(IDS[::-1])
    session.mark()
    session.reset()
    assert session.position == 0
    refused("bad_state", session.logits)
    refused("bad_state", session.rewind)
    assert after(session, IDS[:LENGTH]) == logits


def test_sessions_of_one_model_do_not_disturb_each_other(model, logits):
    first, second = model.session(CAPACITY), model.session(CAPACITY)
    for start in range(0, LENGTH, 10):
        first.append(IDS[start : start + 10])
        second.append(IDS[LENGTH - start - 10 : LENGTH - start])
    assert first.logits().tobytes() == logits


def test_a_session_in_used_memory_is_a_fresh_one(model, logits):
    used = model.session(CAPACITY)
    used.append(IDS)
    size = model.memory_bytes
    del used
    assert after(model.session(CAPACITY), IDS[:LENGTH]) == logits
    assert model.memory_bytes == size


@pytest.mark.parametrize(
    ("code", "ids"),
    [
        ("context_full", [1] * (CAPACITY - 10 + 1)),
        ("bad_token", [1, 1024]),
        ("bad_token", [-1]),
        ("bad_token", [2**40]),
    ],
)
def test_a_refused_append_or_score_changes_nothing(model, code, ids):
    session = model.session(CAPACITY)
    before = after(session, IDS[:10])
    assert isinstance(refused(code, lambda: session.append(ids)), SessionError)
    refused(code, lambda: session.score(ids))
    assert session.position == 10
    assert session.logits().tobytes() == before


def test_numerics_that_do_not_exist_are_refused(engine, random_files):
    data = random_files["everything"].read_bytes()
    assert isinstance(refused("bad_argument", lambda: engine.open(data, numerics="vague")), UsageError)
    instance = engine.instance()
    model = EngineModel(instance, (instance.place(data), len(data), 0), "model", "fast")
    desk = instance.reserve(64)
    refused("bad_argument", lambda: instance.check("x", "sg_session_measure", model._model, 4, 2, desk))


def test_a_session_can_be_filled_to_the_last_token(model):
    session = model.session(3)
    session.append([1, 2])
    session.append([3])
    refused("context_full", lambda: session.append([4]))
    session.append([])
    assert session.position == 3


def test_nothing_can_be_asked_before_the_first_token(model):
    session = model.session(CAPACITY)
    refused("bad_state", session.logits)
    refused("bad_state", lambda: session.score([1]))
    refused("bad_state", session.rewind)


@pytest.mark.parametrize("capacity", [0, -1, 161, 2**32, 2**70])
def test_a_capacity_outside_of_the_model_is_refused(model, capacity):
    assert isinstance(refused("bad_argument", lambda: model.session(capacity)), UsageError)


def test_a_score_of_an_id_without_a_logit_is_refused(engine, random_files):
    model = engine.open(random_files["no_taps_out_vocab"].read_bytes())
    session = model.session(8)
    session.append([1023])
    refused("bad_token", lambda: session.score([700]))
    assert session.score([699]) < 0
