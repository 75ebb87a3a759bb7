"""Models in Python: each in its own instance, with the shape that the rest of Saguaro expects."""

from __future__ import annotations

import inspect

import pytest

from builder.errors import ContainerError, SessionError, UsageError
from builder.runtime import interface
from builder.runtime.engine import Engine, EngineDetokenizer, EngineModel, EngineSession


@pytest.fixture(scope="module")
def base(demo_family) -> bytes:
    return (demo_family.folder / "base.cact").read_bytes()


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [
        (interface.Model, EngineModel),
        (interface.Session, EngineSession),
        (interface.Detokenizer, EngineDetokenizer),
    ],
)
def test_the_engine_has_every_method_of_the_interface(protocol, implementation):
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(method).parameters)
            assert list(inspect.signature(getattr(implementation, name)).parameters) == wanted


def test_a_model_tells_what_it_is(base):
    model = Engine().open(base)
    info = model.info
    assert (info.tag, info.vocab_count, info.layer_count, info.max_seq_len) == (0x05E12A84, 1024, 6, 512)
    assert model.decode([info.im_start_id, info.tool_call_open_id]) == "<|im_start|><tool_call>"
    assert model.numerics == "exact"


def test_a_model_needs_little_more_memory_than_its_file(base):
    assert Engine().open(base).memory_bytes < 1.5 * len(base)


def test_models_do_not_share_memory(base, demo_family):
    engine = Engine()
    first, second = engine.open(base), engine.open((demo_family.folder / "home.cact").read_bytes())
    sessions = [model.session(16) for model in (first, second)]
    for session in sessions:
        session.append([4, 5, 6])
    assert sessions[0].logits().tobytes() != sessions[1].logits().tobytes()
    alone = engine.open(base).session(16)
    alone.append([4, 5, 6])
    assert alone.logits().tobytes() == sessions[0].logits().tobytes()


def test_a_file_is_called_by_its_name_when_it_is_refused(base):
    with pytest.raises(ContainerError, match=r"^home\.cact: header\.d_model at byte 28: is 0"):
        Engine().open(base[:28] + bytes(4) + base[32:], name="home.cact")


@pytest.mark.parametrize("capacity", [-1, 0, 513, 2**32, 2**32 + 8])
def test_a_capacity_that_cannot_be_is_refused_by_its_number(base, capacity):
    with pytest.raises(UsageError, match=rf"capacity_tokens: is {capacity}, must be 1 to 512") as caught:
        Engine().open(base).session(capacity)
    assert caught.value.code == "bad_argument"


@pytest.mark.parametrize("token_count", [-1, 9, 2**32])
def test_a_pin_that_cannot_be_is_refused_by_its_number(base, token_count):
    with pytest.raises(UsageError, match=rf"token_count: is {token_count}, must be 0 to 8") as caught:
        Engine().open(base).session(8).pin(token_count)
    assert caught.value.code == "bad_argument"


@pytest.mark.parametrize("token_id", [-1, 1024, 2**32 - 1, 2**32])
def test_an_id_that_cannot_be_is_refused_by_its_number(base, token_id):
    model = Engine().open(base)
    for take in (model.detokenizer().push, lambda token: model.session(8).append([token])):
        with pytest.raises(SessionError, match=rf"is {token_id}, ") as caught:
            take(token_id)
        assert caught.value.code == "bad_token"


def test_logits_are_a_copy(base):
    session = Engine().open(base).session(8)
    session.append([1])
    before = session.logits()
    kept = before.copy()
    session.append([2])
    assert (before == kept).all()
