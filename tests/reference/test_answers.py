from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from builder.reference.answers import Answer, error_answer, parse_calls, read_answer, visible_text
from tests.reference.golden_cases import named

ENVELOPE = [
    *("type", "success", "error", "error_code", "reason", "function_calls", "suppressed_calls", "reasoning"),
    *("confidence", "prefill_tps", "decode_tps", "peak_ram_mb", "text", "token_ids", "prompt_tokens"),
    *("stop_reason", "numerics", "member"),
]


@pytest.mark.parametrize("case", **named("answers"))
def test_a_text_is_read_as_written_down(case):
    assert asdict(read_answer(case["text"], case["stop_reason"])) == case["expected"]


@pytest.mark.parametrize(
    "payload", ["[" * 100_000, "1" * 5000, '[{"name":"a","arguments":{"n":' + "9" * 5000 + "}}]"]
)
def test_a_payload_that_python_cannot_hold_is_malformed_and_not_a_crash(payload):
    assert parse_calls(payload) is None


def test_the_envelope_has_the_documented_keys_in_order():
    assert list(Answer("respond", True).to_json()) == ENVELOPE
    assert json.loads(json.dumps(Answer("respond", True).to_json())) == Answer("respond", True).to_json()


def test_an_error_says_what_and_carries_nothing_else():
    answer = error_answer("context_full", "too long", "base", "exact").to_json()
    said = {"type": "error", "error": "too long", "error_code": "context_full", "reason": "runtime_failure"}
    assert answer == Answer("respond", False).to_json() | said | {"member": "base", "numerics": "exact"}


def test_people_see_a_text_without_its_reasoning():
    assert visible_text(Answer("respond", True, text="<think>hm</think>\n Hello \n")) == "Hello"
    assert visible_text(Answer("respond", True, text=" Hello")) == "Hello"
