from __future__ import annotations

import json

import pytest

from builder.errors import ContainerError, MemberError, RefusedError, SessionError
from builder.reference.dispatcher import Dispatcher, Family, Member
from builder.reference.prompts import PromptTemplate
from builder.reference.router import call_text
from builder.reference.telemetry import RouteLog, RouteRecord
from builder.runtime.interface import Sampling
from tests.reference.scripted_model import ScriptedModel

SECRET = "zanzibar"
HOME_CALL = '<tool_call>[{"name":"set_light","arguments":{"room":"bedroom"}}]</tool_call>'


class Shelf:
    """A source of scripted models; what is an exception is raised instead of opened."""

    def __init__(self, **models: ScriptedModel | Exception) -> None:
        self.models = models

    def open(self, member_id: str) -> ScriptedModel:
        model = self.models[member_id]
        if isinstance(model, Exception):
            raise model
        return model


def router_for(**log_probabilities: float) -> ScriptedModel:
    """A router whose calls have these log probabilities; the base's call is named `base`."""
    calls = {call_text(None if name == "base" else name): value for name, value in log_probabilities.items()}
    return ScriptedModel(log_probabilities=calls)


FAMILY = Family(
    base=Member("base", PromptTemplate(), 20),
    specialists=(Member("home", PromptTemplate(tools="[home]"), 80), Member("media", PromptTemplate(), 80)),
    router=Member("router", PromptTemplate(tools="[all]", context_turns=2)),
)


def shelf(**changes: ScriptedModel | Exception) -> Shelf:
    models: dict[str, ScriptedModel | Exception] = {
        "base": ScriptedModel("I am the base."),
        "home": ScriptedModel(HOME_CALL),
        "media": ScriptedModel("<tool_call>[]</tool_call>"),
        "router": router_for(base=-3.0, home=-1.0, media=-4.0),
    }
    return Shelf(**(models | changes))


def respond(source: Shelf, turns=("light on",), **options):
    dispatcher = Dispatcher(FAMILY, source)
    answer, record = dispatcher.respond(list(turns), **options)
    assert dispatcher.log.records() == [record]
    return answer, record


def alone(turns=("light on",)):
    answer, _ = Dispatcher(Family(FAMILY.base), shelf()).respond(list(turns))
    return answer


def without_times(answer):
    return {**answer.to_json(), "prefill_tps": 0, "decode_tps": 0}


def test_the_answer_carries_the_confidence_of_the_member_that_gave_it():
    home = ScriptedModel(HOME_CALL, heads=("confidence",))
    answer, _ = respond(shelf(home=home))
    heard = answer.prompt_tokens + len(answer.token_ids)
    assert answer.to_json()["confidence"] == answer.confidence == pytest.approx(heard / 1000)
    assert respond(shelf())[0].confidence is None


def test_system_text_and_tools_are_pinned_for_members_and_router():
    prompt = PromptTemplate(system="be brief", tools="[home]", context_turns=2)
    family = Family(FAMILY.base, (Member("home", prompt, 80), FAMILY.specialists[1]), FAMILY.router)
    source = shelf()
    Dispatcher(family, source).respond(["dim it", "light on"])
    for member, fixed in (
        ("home", "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n<tools>[home]</tools>"),
        ("router", "<|im_start|>user\n<tools>[all]</tools>"),
    ):
        model = source.models[member]
        assert [session.pinned for session in model.sessions] == [len(model.encode("<bos>" + fixed))]


def test_the_chosen_specialist_answers_with_its_own_prompt():
    source = shelf()
    answer, record = respond(source)
    assert answer.function_calls == [{"name": "set_light", "arguments": {"room": "bedroom"}}]
    assert (answer.type, answer.success, answer.member, answer.numerics) == ("call", True, "home", "exact")
    assert record == RouteRecord(1, 1, (0.0, 2.0, -1.0), False, "none", ("base", "home", "media"))
    prompt = "<|im_start|>user\n<tools>[home]</tools>\nlight on<|im_end|>\n<|im_start|>assistant\n"
    assert source.models["home"].sessions[0].prompt == "<bos>" + prompt
    assert answer.prompt_tokens == len(ScriptedModel().encode(prompt)) + 1
    assert source.models["base"].sessions == []


def test_the_base_answers_when_no_call_is_likelier_than_the_empty_one():
    answer, record = respond(shelf(router=router_for(base=-1.0, home=-1.0, media=-4.0)))
    assert without_times(answer) == without_times(alone())
    assert (record.selected, record.effective, record.overflow, record.reason) == (0, 0, False, "none")


def test_the_router_sees_recent_turns_and_the_specialist_does_not():
    source = shelf()
    respond(source, ["one", "two", "three", "and off"])
    assert "<context>two\nthree</context>\nand off" in source.models["router"].sessions[0].prompt
    assert "three" not in source.models["home"].sessions[0].prompt


def test_a_family_without_a_router_is_its_base():
    family = Family(FAMILY.base, FAMILY.specialists)
    answer, record = Dispatcher(family, shelf()).respond(["light on"])
    assert without_times(answer) == without_times(alone())
    assert record == RouteRecord(0, 0, (0.0, None, None), False, "none", ("base", "home", "media"))


def test_a_family_without_specialists_does_not_open_its_router():
    family = Family(FAMILY.base, router=FAMILY.router)
    answer, record = Dispatcher(family, shelf(router=AssertionError("opened"))).respond(["light on"])
    assert answer.member == "base"
    assert record == RouteRecord(0, 0, (0.0,), False, "none", ("base",))


LONG_TEXT = ScriptedModel("x" * 200)
NO_JSON = ScriptedModel("<tool_call>{nonsense</tool_call>")
NO_END = ScriptedModel("<tool_call>[]")
BROKEN = ScriptedModel("half an ans", fails_with=SessionError("worker is gone", code="worker_lost"))
SMALL = ScriptedModel(HOME_CALL, max_seq_len=90)


@pytest.mark.parametrize(
    ("home", "reason"),
    [
        (MemberError("no such part"), "member_unavailable"),
        (MemberError("too big", code="over_budget"), "over_budget"),
        (RefusedError("no room", code="out_of_memory"), "over_budget"),
        (MemberError("died twice", code="worker_lost"), "worker_lost"),
        (ContainerError("bad tag", code="cact_bad_tag"), "member_unavailable"),
        (SMALL, "context_full"),
        (LONG_TEXT, "answer_truncated"),
        (NO_JSON, "answer_malformed"),
        (NO_END, "answer_malformed"),
        (BROKEN, "worker_lost"),
    ],
)
def test_whatever_goes_wrong_with_a_specialist_the_base_answers_as_if_alone(home, reason):
    answer, record = respond(shelf(home=home))
    assert without_times(answer) == without_times(alone())
    assert record == RouteRecord(1, 0, (0.0, 2.0, -1.0), True, reason, ("base", "home", "media"))


@pytest.mark.parametrize(
    ("router", "reason"),
    [
        (MemberError("hash mismatch"), "router_unavailable"),
        (MemberError("too big", code="over_budget"), "router_unavailable"),
        (ScriptedModel(max_seq_len=20), "context_full"),
    ],
)
def test_without_its_router_the_family_is_its_base_and_says_so(router, reason):
    answer, record = respond(shelf(router=router))
    assert without_times(answer) == without_times(alone())
    assert record == RouteRecord(0, 0, (0.0, None, None), True, reason, ("base", "home", "media"))


def test_an_empty_list_of_calls_is_an_answer_and_not_a_failure():
    answer, record = respond(shelf(router=router_for(base=-3.0, home=-9.0, media=-1.0)))
    assert (answer.type, answer.success, answer.function_calls, answer.member) == ("call", True, [], "media")
    assert (record.effective, record.overflow) == (2, False)


def test_an_answer_that_the_user_stopped_is_kept():
    said = []
    answer, record = respond(shelf(), listener=Ear(said), stopped=lambda: said[-1:] == ["["])
    assert (answer.text, answer.stop_reason, answer.member) == ("<tool_call>[", "aborted", "home")
    assert (record.effective, record.reason) == (1, "none")


class Ear:
    """Writes down what a chat would show."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def begin(self, member_id: str) -> None:
        self.heard.append(f"{member_id}:")

    def text(self, piece: str) -> None:
        if piece:
            self.heard.append(piece)

    def unavailable(self, member_id: str, error: Exception) -> None:
        self.heard.append(f"{member_id} cannot: {error}")


def test_a_listener_hears_who_speaks_and_every_piece_of_text():
    heard: list[str] = []
    answer, _ = respond(shelf(home=NO_JSON), listener=Ear(heard))
    start = heard.index("base:")
    assert heard[0] == "home:"
    assert "".join(heard[start + 1 :]) == answer.text == "I am the base."


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"home": MemberError("no such part")}, "home cannot: no such part"),
        ({"router": MemberError("no such router")}, "router cannot: no such router"),
        ({"home": BROKEN}, "home cannot: worker is gone"),
    ],
)
def test_a_listener_hears_why_a_member_cannot_answer(changes, told):
    heard: list[str] = []
    respond(shelf(**changes), listener=Ear(heard))
    assert told in heard
    assert heard.index("base:") > heard.index(told)


def test_a_base_that_is_cut_off_in_a_call_says_truncated():
    answer, record = respond(shelf(base=ScriptedModel("<tool_call>" + "x" * 50), home=MemberError("gone")))
    assert (answer.success, answer.error_code, answer.stop_reason) == (False, "truncated", "length")
    assert record.reason == "member_unavailable"


@pytest.mark.parametrize(
    ("base", "code"),
    [(MemberError("no network"), "member_unavailable"), (ScriptedModel(max_seq_len=9), "context_full")],
)
def test_when_not_even_the_base_can_answer_the_answer_is_an_error(base, code):
    answer, record = respond(shelf(base=base, router=MemberError("gone")))
    assert (answer.type, answer.success, answer.error_code, answer.reason) == (
        "error",
        False,
        code,
        "runtime_failure",
    )
    assert (answer.text, answer.token_ids, answer.stop_reason) == ("", [], None)
    assert record.effective == 0


def test_an_empty_message_is_refused_before_anything_is_opened():
    nothing = Shelf(base=AssertionError(), home=AssertionError(), router=AssertionError())
    dispatcher = Dispatcher(FAMILY, nothing)
    answer, _ = dispatcher.respond(["hello", " \n"])
    assert (answer.type, answer.error_code) == ("error", "empty_turn")
    assert dispatcher.log.records() == []


def test_every_response_has_a_fresh_cache():
    source = shelf()
    dispatcher = Dispatcher(FAMILY, source)
    first, _ = dispatcher.respond(["light on"])
    second, _ = dispatcher.respond(["light on"])
    assert without_times(first) == without_times(second)
    assert len(source.models["home"].sessions) == len(source.models["router"].sessions) == 2


def test_the_base_draws_from_the_same_random_state_as_if_alone():
    source = shelf(home=LONG_TEXT)
    sampling = Sampling(temperature=1.0, random_state=7)
    respond(source, sampling=sampling)
    first_draw_of_base = source.models["base"].sessions[0].samplings[0]
    drawn = len("I am the base.") + 1
    assert first_draw_of_base.random_state == 7 + drawn
    assert sampling.random_state == 7


def test_records_hold_no_text_whatever_the_conversation():
    dispatcher = Dispatcher(
        FAMILY, shelf(home=ScriptedModel(f"<tool_call>{SECRET}"), base=ScriptedModel(SECRET))
    )
    for turns in (["light on", SECRET], [SECRET, "light on"], [SECRET * 5000]):
        dispatcher.respond(turns)
    stored = json.dumps([record.to_json() for record in dispatcher.log.records()])
    assert SECRET not in stored
    assert "light" not in stored
    assert "set_light" not in stored
    words = {value for record in dispatcher.log.records() for value in (record.reason, *record.ids)}
    assert words <= {"none", "answer_malformed", "answer_truncated", "context_full", "base", "home", "media"}


def test_the_log_forgets_the_oldest_routes():
    log = RouteLog(capacity=3)
    records = [RouteRecord(i, 0, (0.0,), False, "none", ("base",)) for i in range(5)]
    for record in records:
        log.add(record)
    assert log.records() == records[2:]
    log.records().clear()
    assert log.records() == records[2:]
