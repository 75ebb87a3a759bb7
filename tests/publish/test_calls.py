"""Tools that calls cannot be held to stop a pack, with a sentence that says where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.errors import FamilyError
from builder.family.family import Member
from builder.publish.calls import require_callable
from tests.grammar.samples import make_model

TIMER = '[{"name":"timer","parameters":{"type":"object","properties":{"tags":SCHEMA},"required":["tags"]}}]'


@pytest.fixture(scope="module")
def base(demo_family) -> bytes:
    return (demo_family.folder / "base.cact").read_bytes()


@pytest.fixture(scope="module")
def home(demo_family) -> Member:
    return demo_family.family.specialists[0]


def test_the_demo_can_be_held_to_its_tools(base, demo_family):
    require_callable(base, demo_family.family.members)


def test_a_keyword_that_is_not_enforced_is_named_with_its_path(base, home):
    tools = TIMER.replace("SCHEMA", '{"type":"array","uniqueItems":true}')
    with pytest.raises(FamilyError) as caught:
        require_callable(base, [replace(home, tools=tools)])
    assert str(caught.value) == (
        "home: tools.json tools.home[0]: timer/parameters/properties/tags/uniqueItems: "
        "cannot be enforced while a call is written; "
        "leave it out of the tool list or say it with keywords of docs/grammar.md"
    )
    assert caught.value.code == "grammar_unsupported"


@pytest.mark.slow
@pytest.mark.parametrize("room", range(1, 7))
def test_room_for_no_call_is_refused(base, home, room):
    require_callable(base, [replace(home, max_new_tokens=24)])
    sentence = f"home: max_new_tokens: is {room}, must be at least [0-9]+, enough for the shortest call"
    for container in (base, make_model()):
        with pytest.raises(FamilyError, match=sentence):
            require_callable(container, [replace(home, max_new_tokens=room)])


def test_the_least_room_that_would_do_is_told_and_does(base, home):
    with pytest.raises(FamilyError) as caught:
        require_callable(base, [replace(home, max_new_tokens=1)])
    least = int(str(caught.value).partition("at least ")[2].partition(",")[0])
    require_callable(base, [replace(home, max_new_tokens=least)])
    with pytest.raises(FamilyError, match=f"at least {least},"):
        require_callable(base, [replace(home, max_new_tokens=least - 1)])


def test_a_tool_that_is_named_twice_is_told_by_its_second_place(base, home):
    tools = '[{"name":"a"},{"name":"timer"},{"name":"timer"}]'
    with pytest.raises(FamilyError) as caught:
        require_callable(base, [replace(home, tools=tools, tools_source="tools")])
    place = "home: tools[2]: timer/name: "
    assert str(caught.value) == f"{place}a tool of this name stands before it; rename one"


def test_a_pattern_that_is_none_is_told_as_that(base, home):
    tools = TIMER.replace("SCHEMA", '{"type":"string","pattern":"(a"}')
    sentence = r"\[0\]: timer/parameters/properties/tags/pattern: is no regular expression of the subset"
    with pytest.raises(FamilyError, match=sentence):
        require_callable(base, [replace(home, tools=tools)])


def test_the_router_is_only_scored(base, demo_family):
    router = demo_family.family.router
    assert router is not None
    require_callable(base, [replace(router, tools='[{"name":"x","parameters":{"not":{}}}]')])
