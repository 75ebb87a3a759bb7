"""What a person reads in the terminal: an answer, who gave it and why.

Owns: the wording, and keeping control characters of a model away from the terminal.
Does not know: where lines go, colours.
"""

from __future__ import annotations

import json
import re
from typing import Any

from builder.errors import SaguaroError
from builder.reference.answers import Answer, visible_text
from builder.reference.telemetry import RouteRecord

STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
REASONS = {
    "router_unavailable": "the router cannot be had",
    "member_unavailable": "it cannot be had",
    "over_budget": "it does not fit into memory",
    "context_full": "the prompt is too long for it",
    "answer_truncated": "its answer was cut off at the token limit",
    "answer_malformed": "its answer made no sense",
    "worker_lost": "it stopped in the middle",
}


def answer_text(answer: Answer) -> str:
    """The answer for people: calls as `name(key=value)`, plain text, or the error's sentence."""
    if not answer.success:
        return printable(answer.error or "")
    if answer.type == "call":
        return "; ".join(map(call_text, answer.function_calls)) or "(nothing to do)"
    return printable(visible_text(answer)) or "(no words)"


def call_text(call: dict[str, Any]) -> str:
    """`set_light(room="bedroom", state="on")`."""
    arguments = (
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call["arguments"].items()
    )
    return printable(f"{call['name']}({', '.join(arguments)})")


def route_text(record: RouteRecord) -> str:
    """Why this member answered, in a few words."""
    name, score = record.ids[record.selected], record.scores[record.selected]
    if record.overflow and record.selected == 0:
        reason = (
            "the message is too long for the router"
            if record.reason == "context_full"
            else REASONS[record.reason]
        )
        return f"{reason}, so the base answers"
    if record.overflow:
        return f"{name} was chosen ({score:+.1f}), but {REASONS[record.reason]}, so the base answers"
    if record.selected:
        return f"chosen with {score:+.1f}"
    scored = [other for other in record.scores[1:] if other is not None]
    return f"no specialist has a positive score (best {max(scored):+.1f})" if scored else "nobody else to ask"


def unavailable_text(member_id: str, error: SaguaroError) -> str:
    """Why a member cannot answer; its name comes first, and is not said twice."""
    name, sentence = f"{member_id}: ", printable(str(error))
    return sentence if sentence.startswith(name) else name + sentence


def printable(text: str) -> str:
    """The text without what steers a terminal or turns its lines around; line ends and tabs stay."""
    return STEERING.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())
