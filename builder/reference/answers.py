"""From generated text to an answer: the envelope, the call's JSON, and whether the answer can be used.

Owns: the section "The answer" of docs/dispatch.md; `web/family` does the same in JavaScript, and both are
held to `tests/golden/prompts.json`.
Does not know: tokens, models, routes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn

from builder.reference.prompts import clean_turn

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
StopReason = Literal["stop", "length", "aborted"]
AnswerType = Literal["call", "respond", "error"]
MALFORMED = "the tool call is not valid JSON"
TRUNCATED = "the tool call was cut off at the token limit"


@dataclass(frozen=True)
class Answer:
    """The envelope that a chat shows and a test compares, named as in the official engine."""

    type: AnswerType
    success: bool
    error: str | None = None
    error_code: str | None = None
    reason: str | None = None
    function_calls: list[dict[str, Any]] = field(default_factory=list)
    suppressed_calls: list[dict[str, Any]] = field(default_factory=list)
    reasoning: str | None = None
    confidence: float | None = None
    prefill_tps: float = 0.0
    decode_tps: float = 0.0
    peak_ram_mb: float = 0.0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    stop_reason: StopReason | None = None
    numerics: str = ""
    member: str = ""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary with the envelope's keys in order."""
        return asdict(self)


@dataclass(frozen=True)
class Reading:
    """What a generated text says."""

    type: AnswerType
    success: bool
    error: str | None
    error_code: str | None
    function_calls: list[dict[str, Any]]
    reasoning: str | None


def read_answer(text: str, stop_reason: StopReason) -> Reading:
    """Read a generated text, markers included, as an answer."""
    reasoning, rest = _split_reasoning(text)
    if CALL_OPEN not in rest:
        return Reading("respond", True, None, None, [], reasoning)
    payload = rest.split(CALL_OPEN, 1)[1]
    if not payload.endswith(CALL_CLOSE):
        if stop_reason == "length":
            return Reading("call", False, TRUNCATED, "truncated", [], reasoning)
        return Reading("call", False, MALFORMED, "malformed", [], reasoning)
    calls = parse_calls(payload.removesuffix(CALL_CLOSE))
    if calls is None:
        return Reading("call", False, MALFORMED, "malformed", [], reasoning)
    return Reading("call", True, None, None, calls, reasoning)


def parse_calls(payload: str) -> list[dict[str, Any]] | None:
    """The calls in a JSON array of `{"name": str, "arguments": object, ...}`, or None if it is not one."""
    try:
        calls = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        return None
    return calls


def visible_text(answer: Answer) -> str:
    """What a person should read of a plain answer: the text without its reasoning, cleaned."""
    return clean_turn(_split_reasoning(answer.text)[1])


def error_answer(code: str, sentence: str, member: str, numerics: str) -> Answer:
    """The envelope for a response that could not be made."""
    reason = "runtime_failure"
    return Answer(
        "error", False, error=sentence, error_code=code, reason=reason, member=member, numerics=numerics
    )


def _split_reasoning(text: str) -> tuple[str | None, str]:
    start = clean_turn(text)
    if not start.startswith(THINK_OPEN):
        return None, text
    reasoning, _, rest = text.split(THINK_OPEN, 1)[1].partition(THINK_CLOSE)
    return clean_turn(reasoning), rest


def _is_call(call: object) -> bool:
    return (
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments"), dict)
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
