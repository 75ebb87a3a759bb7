"""Which candidate should answer: the router's model scores every call by teacher forcing.

Owns: the section "Route, once per response" of docs/dispatch.md.
Does not know: whether a candidate can be had, how an answer is made, torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from builder.reference.prompts import PromptTemplate, count_fixed, fit_prompt
from builder.runtime.interface import Model

BASE_INDEX = 0


def call_text(specialist_id: str | None) -> str:
    """The call that stands for a specialist, or for the base (None)."""
    calls = "[]" if specialist_id is None else f'[{{"name":"{specialist_id}","arguments":{{}}}}]'
    return f"<tool_call>{calls}</tool_call>"


def call_ids(model: Model, specialist_id: str | None) -> list[int]:
    """The ids of a candidate's call where it follows a line end."""
    line_end = "\n"
    return model.encode(line_end + call_text(specialist_id))[len(model.encode(line_end)) :]


def score_candidates(
    model: Model, template: PromptTemplate, specialist_ids: Sequence[str], turns: Sequence[str]
) -> list[float]:
    """One score per candidate: ln p(its call) - ln p(the empty call); the base's is 0. `turns` are cleaned.

    Raises `SessionError` (context_full) if the prompt and the longest call do not fit.
    """
    calls = [call_ids(model, candidate) for candidate in (None, *specialist_ids)]
    room_tokens = max(map(len, calls))
    prompt = fit_prompt(model, template, turns, room_tokens)
    session = model.session(len(prompt) + room_tokens)
    session.pin(count_fixed(model, template, prompt))
    session.append(prompt)
    logs = [session.score(call) for call in calls]
    return [log - logs[BASE_INDEX] for log in logs]


def choose(scores: Sequence[float]) -> int:
    """The candidate with the best score above 0; ties go to the lower index, nothing above 0 to the base."""
    best = BASE_INDEX
    for index, score in enumerate(scores):
        if score > 0 and (best == BASE_INDEX or score > scores[best]):
            best = index
    return best
