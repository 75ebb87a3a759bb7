from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from builder.errors import MemberError
from builder.reference.answers import Answer, error_answer
from builder.reference.chat_text import answer_text, one_line, printable, route_text
from builder.reference.chat_views import JsonView, LineView, TerminalView, choose_view
from builder.reference.telemetry import RouteRecord

IDS = ("base", "home", "media")
LIGHT = {"name": "set_light", "arguments": {"room": "bedroom", "level": 3}}


def record(selected=0, effective=0, reason="none", scores=(0.0, 8.25, -1.5)):
    return RouteRecord(selected, effective, scores, reason != "none", reason, IDS)


def said(text, member="base", **fields):
    return Answer("respond", True, text=text, member=member, stop_reason="stop", token_ids=[1, 2], **fields)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (said(" Hello. "), "Hello."),
        (said("<think>hm</think>Hello."), "Hello."),
        (said(""), "(no words)"),
        (Answer("call", True, function_calls=[LIGHT]), 'set_light(room="bedroom", level=3)'),
        (
            Answer("call", True, function_calls=[LIGHT, {"name": "f", "arguments": {}}]),
            'set_light(room="bedroom", level=3); f()',
        ),
        (Answer("call", True), "(nothing to do)"),
        (Answer("call", False, error="the tool call is not valid JSON"), "the tool call is not valid JSON"),
    ],
)
def test_answers_are_written_for_people(answer, text):
    assert answer_text(answer) == text


@pytest.mark.parametrize(
    ("route", "text"),
    [
        (record(1, 1), "chosen with +8.2"),
        (record(scores=(0.0, -8.25, -1.5)), "no specialist has a positive score (best -1.5)"),
        (record(scores=(0.0, None, None)), "nobody else to ask"),
        (
            record(1, 0, "member_unavailable"),
            "home was chosen (+8.2), but it cannot be had, so the base answers",
        ),
        (record(0, 0, "router_unavailable"), "the router cannot be had, so the base answers"),
        (record(0, 0, "context_full"), "the message is too long for the router, so the base answers"),
        (
            record(1, 0, "context_full"),
            "home was chosen (+8.2), but the prompt is too long for it, so the base answers",
        ),
    ],
)
def test_routes_are_explained_for_people(route, text):
    assert route_text(route) == text


def test_a_model_cannot_steer_the_terminal():
    assert printable("a\x1b[31mb\x07\x9bc\n\t") == "a\ufffd[31mb\ufffd\ufffdc\n\t"
    assert printable("a\u202eb\u2066c\ud800d\u00e9") == "a\ufffdb\ufffdc\ufffdd\u00e9"
    call = {"name": "f\x1b", "arguments": {"x": "\x1b"}}
    assert "\x1b" not in answer_text(Answer("call", True, function_calls=[call]))
    assert "\x1b" not in answer_text(said("\x1b"))


def test_an_answer_with_line_ends_is_one_line_in_a_pipe(capsys):
    LineView().show(said("one\ntwo\r\n three"), record(scores=(0.0, None, None)))
    assert capsys.readouterr().out == "base: one two three  [nobody else to ask]\n"
    assert one_line("a\n b") == "a b"


def test_an_error_is_one_line_too(capsys):
    LineView().show(error_answer("empty_turn", "the message is empty", "base", "exact"), record())
    assert capsys.readouterr().out == "error: the message is empty\n"


def test_json_has_the_envelope_and_the_route_on_one_line(capsys):
    answer, route = said("one\ntwo"), record(1, 1)
    JsonView().show(answer, route)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"answer": answer.to_json(), "route": json.loads(json.dumps(route.to_json()))}


def test_a_pipe_gives_its_lines_whatever_their_bytes(monkeypatch):
    data = io.TextIOWrapper(io.BytesIO(b"one\n\ncaf\xc3\xa9 \xff\r\nlast"), encoding="ascii")
    monkeypatch.setattr("sys.stdin", data)
    assert list(LineView().lines()) == ["one", "", "café \ufffd\r", "last"]


def test_trouble_names_the_member_once(capsys):
    LineView().unavailable("router", MemberError("router: needs 9 MB"))
    assert capsys.readouterr().err == "chat: router: needs 9 MB\n"


def test_trouble_goes_to_stderr_so_that_stdout_is_the_conversation(capsys):
    LineView().unavailable("home", MemberError("parts/0.bin: is\nmissing"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "chat: home: parts/0.bin: is missing\n")


class Terminal:
    """A terminal view whose screen can be read; escape sequences are off."""

    def __init__(self) -> None:
        self.screen = io.StringIO()
        self.view = TerminalView(Console(file=self.screen, no_color=True, color_system=None, width=200))

    def hear(self, member, *pieces):
        self.view.begin(member)
        for piece in pieces:
            self.view.text(piece)

    @property
    def text(self):
        return self.screen.getvalue()


def test_plain_text_appears_while_it_is_made():
    terminal = Terminal()
    terminal.hear("base", " ", "Hel", "lo")
    assert terminal.text == "base: Hello"
    terminal.view.show(said(" Hello"), record(scores=(0.0, None, None)))
    assert terminal.text == "base: Hello\nnobody else to ask; 2 tokens, 0/s\n"


@pytest.mark.parametrize("pieces", [("<tool", "_call>", "[]", "</tool_call>"), ("<", "think>", "hm")])
def test_calls_and_reasoning_wait_until_they_are_complete(pieces):
    terminal = Terminal()
    terminal.hear("home", *pieces)
    assert terminal.text == ""
    terminal.view.show(Answer("call", True, function_calls=[LIGHT], member="home"), record(1, 1))
    assert terminal.text == 'home: set_light(room="bedroom", level=3)\nchosen with +8.2\n'


def test_what_only_looked_like_a_marker_appears_at_once():
    terminal = Terminal()
    terminal.hear("base", "<", "3 you")
    assert terminal.text == "base: <3 you"


def test_a_discarded_answer_is_marked_before_the_base_begins():
    terminal = Terminal()
    terminal.hear("home", "half an ans")
    terminal.hear("base", "Hello")
    terminal.view.show(said("Hello"), record(1, 0, "answer_truncated"))
    assert terminal.text.splitlines()[:3] == ["home: half an ans", "(discarded)", "base: Hello"]


def test_nothing_that_a_model_says_is_markup():
    terminal = Terminal()
    terminal.hear("base", "[red]x[/red] \x1b[0m")
    terminal.view.show(said("..."), record())
    assert terminal.text.startswith("base: [red]x[/red] \ufffd[0m\n")


def test_a_stopped_answer_says_so():
    terminal = Terminal()
    terminal.hear("base", "Hel")
    terminal.view.show(Answer("respond", True, text="Hel", member="base", stop_reason="aborted"), record())
    assert terminal.text.endswith("; stopped\n")


def test_blank_lines_ask_again_and_the_end_of_input_ends(monkeypatch):
    typed = iter(["", "  ", "hello"])

    def read(self, prompt):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(Console, "input", read)
    assert list(Terminal().view.lines()) == ["hello"]


def test_a_pipe_and_json_get_their_own_views(monkeypatch):
    assert type(choose_view(as_json=True)) is JsonView
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert type(choose_view(as_json=False)) is LineView
