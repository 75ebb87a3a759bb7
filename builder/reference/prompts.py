"""From turns to prompts: cleaning, rendering, and making a prompt fit.

Owns: the sections "Turns" and "Prompts" of docs/dispatch.md; `web/family` does the same in JavaScript, and
both are held to `tests/golden/prompts.json`.
Does not know: who routes, how text is encoded, torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from builder.errors import SessionError
from builder.runtime.interface import Model

WHITE_SPACE = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What ECMAScript's `trim` cuts; Python's `strip` has another list."""


@dataclass(frozen=True)
class PromptTemplate:
    """The `prompt` object of a member in the manifest."""

    system: str = ""
    tools: str = ""
    context_turns: int = 0


def clean_turn(text: str) -> str:
    """A turn as it is used everywhere: well-formed Unicode, `\\n` line ends, no white space at its ends."""
    return well_formed(text).replace("\r\n", "\n").replace("\r", "\n").strip(WHITE_SPACE)


def well_formed(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, as JavaScript's `toWellFormed`."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_conversation(turns: Sequence[str]) -> list[str]:
    """Cleaned turns without the empty ones; the last is the query. Raises `SessionError` (`empty_turn`)."""
    cleaned = [clean_turn(turn) for turn in turns]
    if not cleaned or not cleaned[-1]:
        raise SessionError("the message is empty; type something first", code="empty_turn")
    return [turn for turn in cleaned if turn]


def render_prompt(template: PromptTemplate, turns: Sequence[str], context_turns: int) -> str:
    """The prompt's text for cleaned `turns`, showing at most `context_turns` of the earlier ones."""
    earlier = turns[:-1][-context_turns:] if context_turns > 0 else []
    context = "<context>" + "\n".join(earlier) + "</context>\n" if earlier else ""
    return f"{fixed_part(template)}\n{context}{turns[-1]}<|im_end|>\n<|im_start|>assistant\n"


def fixed_part(template: PromptTemplate) -> str:
    """How every prompt begins, whatever the turns: system text and tools."""
    system = f"<|im_start|>system\n{template.system}<|im_end|>\n" if template.system else ""
    tools = f"\n<tools>{template.tools}</tools>" if template.tools else ""
    return f"{system}<|im_start|>user{tools}"


def count_fixed(model: Model, template: PromptTemplate, prompt_ids: Sequence[int]) -> int:
    """How many of the prompt's ids are its fixed part's."""
    fixed = [model.info.bos_id, *model.encode(well_formed(fixed_part(template)))]
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(fixed, prompt_ids, strict=False))
    return sum(1 for _ in shared)


def fit_prompt(model: Model, template: PromptTemplate, turns: Sequence[str], room_tokens: int) -> list[int]:
    """BOS and the prompt's ids with room for `room_tokens` more; drops the oldest context turns until it
    fits.

    `turns` are cleaned. Raises `SessionError` (`context_full`) if it does not fit without any context.
    """
    limit = model.info.max_seq_len - room_tokens
    for context_turns in range(min(template.context_turns, len(turns) - 1), -1, -1):
        text = well_formed(render_prompt(template, turns, context_turns))
        ids = [model.info.bos_id, *model.encode(text)]
        if len(ids) <= limit:
            return ids
    found, allowed = len(ids), max(limit, 0)
    raise SessionError(
        f"the message is too long: its prompt takes {found} tokens, the model can take {allowed}; shorten it",
        code="context_full",
    )
