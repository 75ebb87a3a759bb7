"""Probe heads: the numbers of the reference (parity compares upstream's model) and of needle-rs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from builder.cact.reader import read_container
from builder.errors import SaguaroError, SessionError
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine, EngineModel, EngineSession
from builder.runtime.host import Instance
from builder.runtime.interface import HEADS, Model, embed
from tests.engine.generation_2 import HEADER, write_generation_2
from tests.engine.heads_of_generation_2 import with_heads

RELATIVE_RMS_MAX = 1e-4
"""The promise of docs/numerics.md."""
NEEDLE_RS_TOLERANCE = 1e-4
"""Absolute, on probabilities and on a vector of length 1."""
LENGTH, CAPACITY = 100, 110
LISTEN_BYTES = 1 << 18
"""More than any head here needs."""
IDS = np.random.default_rng(17).integers(1, 1024, CAPACITY).tolist()
QUERY, TOOLS = "turn on the lamp in the kitchen", '[{"name":"f"}]'
CALL = '<tool_call>[{"name":"f","arguments":{}}]</tool_call>'


@pytest.fixture(scope="module")
def generation_2() -> bytes:
    return with_heads(write_generation_2(HEADER, seed=22), seed=4)


@pytest.fixture(scope="module")
def without_window(tmp_path_factory) -> Path:
    """needle-rs windows the KV cache of its answers, but not the cells of its heads."""
    path = tmp_path_factory.mktemp("heads") / "model.cact"
    header = dataclasses.replace(HEADER, kv_window=2048)
    path.write_bytes(with_heads(write_generation_2(header, seed=22), seed=4))
    return path


@pytest.fixture(scope="module", params=[2, 3])
def data(request, generation_2, random_files) -> bytes:
    return generation_2 if request.param == 2 else random_files["everything"].read_bytes()


@pytest.fixture(scope="module")
def model(engine, data) -> EngineModel:
    return engine.open(data)


def relative_rms(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def said(session: EngineSession, model: EngineModel) -> list[bytes]:
    return [session.head(name).tobytes() for name in model.info.heads]


def listening(model: Model, ids: list[int], capacity: int = CAPACITY, pinned: int = 0):
    session = model.session(capacity, model.info.heads)
    session.pin(pinned)
    session.append(ids)
    return session


def refused(code: str, call) -> str:
    with pytest.raises(SaguaroError) as info:
        call()
    assert info.value.code == code
    return str(info.value)


@pytest.mark.parametrize("export", ["sg_session_open", "sg_session_listen"])
def test_a_session_that_fails_gives_its_memory_back(model, monkeypatch, export):
    check = Instance.check

    def fail(instance: Instance, subject: str, name: str, *arguments: int | float) -> int:
        if name == export:
            raise SessionError("session: failed", code="bad_state")
        return check(instance, subject, name, *arguments)

    monkeypatch.setattr(Instance, "check", fail)
    memory_bytes = []
    for _ in range(4):
        refused("bad_state", lambda: model.session(CAPACITY, model.info.heads))
        memory_bytes.append(model.memory_bytes)
    assert memory_bytes[-1] == memory_bytes[0]


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [0, 30])
def test_heads_say_what_the_reference_says(model, data, pinned):
    found = listening(model, IDS[:LENGTH], pinned=pinned)
    expected = listening(ReferenceModel(read_container(data)), IDS[:LENGTH], pinned=pinned)
    assert model.info.heads == tuple(HEADS)[: 2 if model.info.tag == HEADER.tag else 3]
    for name in model.info.heads:
        assert relative_rms(found.head(name), expected.head(name)) < RELATIVE_RMS_MAX


def prompt(model: EngineModel, answer: str) -> list[int]:
    text = f"<|im_start|>user\n<tools>{TOOLS}</tools>\n{QUERY}<|im_end|>\n<|im_start|>assistant\n"
    return [model.info.bos_id, *model.encode(text + answer)]


def test_needle_rs_has_the_same_confidence_in_an_answer(engine, without_window, random_files):
    needle_rs = pytest.importorskip("needle_rs")
    for peer, file in (
        (needle_rs.V2Engine, without_window),
        (needle_rs.V3Engine, random_files["everything"]),
    ):
        model = engine.open(file.read_bytes())
        expected = peer.load(str(file)).confidence_for(QUERY, TOOLS, CALL)
        found = listening(model, prompt(model, CALL)).head("confidence")
        assert abs(found[0] - expected) < NEEDLE_RS_TOLERANCE
        assert 0.1 < expected < 0.9


def test_needle_rs_embeds_a_text_in_the_same_way(engine, without_window):
    needle_rs = pytest.importorskip("needle_rs")
    peer, model = needle_rs.V2Engine.load(str(without_window)), engine.open(without_window.read_bytes())
    for text in (QUERY, "日本 💡"):
        found = embed(model, text)
        assert np.abs(found - peer.encode_contrastive(text)).max() < NEEDLE_RS_TOLERANCE
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_of_any_size_give_the_same_bits(model, block):
    expected = said(listening(model, IDS[:LENGTH]), model)
    session = listening(model, [])
    for start in range(0, LENGTH, block):
        session.append(IDS[start : min(start + block, LENGTH)])
    assert said(session, model) == expected


def test_marks_scores_and_resets_leave_heads_as_they_were(model):
    half, whole = (said(listening(model, IDS[:count]), model) for count in (LENGTH // 2, LENGTH))
    session = listening(model, IDS[: LENGTH // 2])
    session.mark()
    session.score(IDS[LENGTH:])
    assert said(session, model) == half
    session.append(IDS[LENGTH // 2 : LENGTH])
    assert said(session, model) == whole
    session.rewind()
    assert said(session, model) == half
    session.reset()
    refused("bad_state", lambda: session.head("confidence"))
    session.append(IDS[:LENGTH])
    assert said(session, model) == whole


def test_a_mark_that_is_older_than_the_listener_is_as_good_as_any(model):
    instance, session = model._instance, model.session(CAPACITY, ("embedding",))
    session.mark()
    memory = instance.reserve(LISTEN_BYTES)
    listen = ("sg_session_listen", session._session, HEADS["embedding"], memory, LISTEN_BYTES)
    instance.check("session", *listen)
    session.append(IDS[: LENGTH // 2])
    session.rewind()
    session.append(IDS[:2])
    assert session.head("embedding").tobytes() == listening(model, IDS[:2]).head("embedding").tobytes()


def test_listening_does_not_change_the_logits(model):
    quiet = model.session(CAPACITY)
    quiet.append(IDS[:LENGTH])
    assert listening(model, IDS[:LENGTH]).logits().tobytes() == quiet.logits().tobytes()


def test_two_sessions_listen_for_themselves(model):
    expected = said(listening(model, IDS[:LENGTH]), model)
    first, second = (listening(model, IDS[start:LENGTH:2]) for start in (0, 1))
    assert said(first, model) != said(second, model)
    assert said(listening(model, IDS[:LENGTH]), model) == expected


def test_a_head_that_the_file_does_not_have_is_refused(engine: Engine, random_files):
    model = engine.open(random_files["padded"].read_bytes(), name="home")
    assert model.info.heads == ()
    for make in (lambda: model.session(8, ("confidence",)), lambda: embed(model, "hi")):
        assert refused("unknown_head", make).startswith("home: has no ")
    reference = ReferenceModel(read_container(random_files["padded"]))
    refused("unknown_head", lambda: reference.session(8, ("confidence",)))
    desk = model._instance.reserve(8)
    for head in (*HEADS.values(), 0, 4):
        arguments = ("sg_head_measure", model._model, head, desk, desk + 4)
        refused("unknown_head", lambda a=arguments: model._instance.check("home", *a))


def test_a_head_that_nobody_listened_for_is_not_there(model, data):
    for opened in (model, ReferenceModel(read_container(data))):
        session = opened.session(8, ("embedding",))
        refused("bad_state", lambda s=session: s.head("embedding"))
        session.append([4, 5])
        sentence = refused("bad_state", lambda s=session: s.head("confidence"))
        assert sentence == "session: was not opened with the head 'confidence'; name it in heads"


def test_the_engine_itself_refuses_to_listen_late_or_in_too_little_memory(model):
    instance, session = model._instance, model.session(8)
    listen = ("sg_session_listen", session._session, HEADS["confidence"])
    memory = instance.reserve(8)
    refused("out_of_memory", lambda: instance.check("session", *listen, memory, 8))
    session.append([4])
    refused("bad_state", lambda: instance.check("session", *listen, memory, 8))
    refused("bad_state", lambda: instance.check("session", "sg_session_head", *listen[1:], memory))


def test_a_text_that_does_not_fit_is_refused(model):
    text = "no " * model.info.max_seq_len
    assert refused("context_full", lambda: embed(model, text)).startswith("text: length: is ")


@pytest.mark.slow
def test_a_long_text_is_pooled_as_well_as_a_short_one(engine, without_window):
    """A softmax mean that is carried along loses nothing over some hundred tokens."""
    wide = without_window.read_bytes()
    ids = np.random.default_rng(3).integers(1, 1024, 500).tolist()
    found = listening(engine.open(wide), ids, 500)
    expected = listening(ReferenceModel(read_container(wide)), ids, 500)
    for name in ("embedding", "confidence"):
        assert relative_rms(found.head(name), expected.head(name)) < RELATIVE_RMS_MAX
