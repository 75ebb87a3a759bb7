"""Three ways to hold the conversation: on a terminal, line by line in a pipe, as JSON.

Owns: reading turns and printing answers while they are made. Each view is a dispatcher's `Listener` too.
Does not know: how an answer is made, what the words mean (chat_text.py).
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.text import Text

from builder.errors import SaguaroError
from builder.publish.manifest import Manifest
from builder.reference.answers import CALL_OPEN, THINK_OPEN, Answer
from builder.reference.chat_text import answer_text, one_line, printable, route_text, unavailable_text
from builder.reference.dispatcher import Listener
from builder.reference.telemetry import RouteRecord


class View(Listener, Protocol):
    """A conversation partner's eyes and mouth."""

    def greet(self, manifest: Manifest) -> None:
        """Before the first turn."""
        ...

    def lines(self) -> Iterator[str]:
        """The user's turns until there are no more."""
        ...

    def show(self, answer: Answer, record: RouteRecord) -> None:
        """The finished answer."""
        ...


class LineView:
    """One line in, one line out: who, the answer, why."""

    def greet(self, manifest: Manifest) -> None:
        """Say nothing: stdout holds answers only."""

    def lines(self) -> Iterator[str]:
        """Each line of stdin; what is not UTF-8 becomes U+FFFD."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
        for line in sys.stdin:
            yield line.removesuffix("\n")

    def begin(self, member_id: str) -> None:
        """Wait for the whole answer."""

    def text(self, piece: str) -> None:
        """Wait for the whole answer."""

    def unavailable(self, member_id: str, error: SaguaroError) -> None:
        """Say on stderr what the record cannot."""
        print(f"chat: {one_line(unavailable_text(member_id, error))}", file=sys.stderr)

    def show(self, answer: Answer, record: RouteRecord) -> None:
        """Print one line."""
        if answer.type == "error":
            print(f"error: {one_line(answer_text(answer))}", flush=True)
        else:
            print(f"{answer.member}: {one_line(answer_text(answer))}  [{route_text(record)}]", flush=True)


class JsonView(LineView):
    """One line in, one JSON document out."""

    def show(self, answer: Answer, record: RouteRecord) -> None:
        """Print `{"answer": ..., "route": ...}` on one line."""
        print(json.dumps({"answer": answer.to_json(), "route": record.to_json()}), flush=True)


class TerminalView:
    """A prompt, streamed text, and a quiet line that says why."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._member = ""
        self._heard = ""
        self._is_streaming = False

    def greet(self, manifest: Manifest) -> None:
        """Who is there and which keys do what."""
        names = ", ".join(member.id for member in manifest.specialists) or "no specialists"
        self._quietly(f"{manifest.title}: {manifest.base.id}, {names}")
        self._quietly("Ctrl-C stops an answer, Ctrl-D ends the conversation")

    def lines(self) -> Iterator[str]:
        """What is typed at the prompt; blank lines ask again."""
        while True:
            try:
                line = self._console.input(Text("you: ", style="bold"))
            except EOFError:
                self._console.print()
                return
            if line.strip():
                yield line

    def begin(self, member_id: str) -> None:
        """Another member takes over: what was streamed so far is void."""
        if self._is_streaming:
            self._console.print()
            self._quietly("(discarded)")
        self._member, self._heard, self._is_streaming = member_id, "", False

    def text(self, piece: str) -> None:
        """Print plain text as it comes; reasoning and calls wait until they are complete."""
        self._heard += piece
        if not self._is_streaming and not _may_be_marked(self._heard.lstrip()):
            self._is_streaming = True
            self._name(self._member)
            piece = self._heard.lstrip()
        if self._is_streaming:
            self._console.out(printable(piece), end="", highlight=False)

    def unavailable(self, member_id: str, error: SaguaroError) -> None:
        """Say what the record cannot."""
        self._quietly(unavailable_text(member_id, error))

    def show(self, answer: Answer, record: RouteRecord) -> None:
        """Finish the answer's line, then say why this member and how fast."""
        if answer.type == "error":
            self._console.print(Text(answer_text(answer), style="red"), soft_wrap=True)
            return
        if self._is_streaming and self._member == answer.member:
            self._console.print()
        else:
            self._name(answer.member)
            self._console.out(answer_text(answer), highlight=False)
        stopped = {"aborted": "; stopped", "length": "; cut off at the token limit"}.get(
            answer.stop_reason or "", ""
        )
        speed = f"; {len(answer.token_ids)} tokens, {answer.decode_tps:.0f}/s" if answer.token_ids else ""
        self._quietly(route_text(record) + speed + stopped)
        self._is_streaming = False

    def _name(self, member_id: str) -> None:
        self._console.print(Text(f"{member_id}: ", style="bold green"), end="")

    def _quietly(self, text: str) -> None:
        self._console.print(Text(text, style="dim"), soft_wrap=True)


def choose_view(as_json: bool) -> View:
    """A terminal on both ends gets the pleasant view."""
    if as_json:
        return JsonView()
    if sys.stdin.isatty() and sys.stdout.isatty():
        return TerminalView(Console(highlight=False))
    return LineView()


def _may_be_marked(text: str) -> bool:
    """Whether the text begins with a marker, or may still turn out to."""
    return any(text.startswith(marker) or marker.startswith(text) for marker in (THINK_OPEN, CALL_OPEN))
