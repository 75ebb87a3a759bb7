"""A conversation in one cache: the user's turns, calls, and what the tools gave back.

Owns: docs/sessions.md: how later turns and tool results are rendered, and what of a cache is kept when the
history changes. The dispatcher does not use it: a family answers each response from a fresh cache.
Does not know: routes, families, pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from builder.errors import SessionError, UsageError, refusal
from builder.reference.answers import Reading, StopReason, read_answer
from builder.reference.generation import Limits, decode, never, nobody
from builder.reference.prompts import PromptTemplate, clean_conversation, count_fixed, render_prompt
from builder.runtime.interface import Model, Sampling

MAX_NEW_TOKENS = 128
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"
OUTSIDE_OF_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\n\r]+')


@dataclass(frozen=True)
class Turn:
    """What was said to the model, and what it said: ids and why they ended, or None while it has not."""

    text: str
    is_result: bool = False
    answer: tuple[int, ...] | None = None
    stop_reason: StopReason | None = None


@dataclass(frozen=True)
class Reply:
    """One answer of a conversation."""

    token_ids: list[int]
    text: str
    stop_reason: StopReason
    reading: Reading
    prompt_tokens: int
    reused_tokens: int
    """Of the prompt's tokens: how many the cache held already."""


class Conversation:
    """Turns with one member, each answered in the same session.

    `capacity_tokens` is the session's; the model's `max_seq_len` unless given. Raises what opening a session
    and compiling a grammar raise.
    """

    def __init__(
        self,
        model: Model,
        template: PromptTemplate,
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        capacity_tokens: int | None = None,
    ) -> None:
        if max_new_tokens < 1:
            message = refusal("conversation", "max_new_tokens", found=max_new_tokens, allowed="1 or more")
            raise UsageError(message, code="bad_argument")
        self._model, self._template, self._max_new_tokens = model, template, max_new_tokens
        self._capacity = capacity_tokens or model.info.max_seq_len
        self._cache = KeptCache(model, self._capacity)
        self._grammar = model.grammar(template.tools) if template.tools else None
        self.turns: list[Turn] = []

    def ask(
        self,
        text: str,
        sampling: Sampling | None = None,
        *,
        stopped: Callable[[], bool] = never,
        on_token: Callable[[int], None] = nobody,
    ) -> Reply:
        """Answer a user's turn. Raises `SessionError`: empty_turn, context_full (nothing has changed)."""
        (query,) = clean_conversation([text])
        return self._answer(Turn(query), sampling or Sampling(), stopped, on_token)

    def give_result(
        self,
        result: str,
        sampling: Sampling | None = None,
        *,
        stopped: Callable[[], bool] = never,
        on_token: Callable[[int], None] = nobody,
    ) -> Reply:
        """Answer what the tools gave back, JSON: one result or a list. Raises `SessionError`: bad_state
        unless the last answer made calls, bad_result for what is no JSON, context_full.
        """
        last = self.turns[-1] if self.turns else None
        if last is None or last.answer is None or not _calls(self._model, last):
            raise SessionError(
                "conversation: the last answer made no call to give a result for", code="bad_state"
            )
        return self._answer(
            Turn(compact_result(result), is_result=True), sampling or Sampling(), stopped, on_token
        )

    def _answer(
        self, turn: Turn, sampling: Sampling, stopped: Callable[[], bool], on_token: Callable[[int], None]
    ) -> Reply:
        prompt = render_turns(self._model, self._template, [*self.turns, turn])
        if len(prompt) >= self._capacity:
            allowed = f"below {self._capacity} tokens"
            message = refusal("conversation", "length", found=len(prompt), allowed=allowed)
            raise SessionError(f"{message}; begin another", code="context_full")
        pinned = count_fixed(self._model, self._template, prompt)
        reused = self._cache.hold(prompt, pinned)
        limits = Limits(self._max_new_tokens, self._capacity, stopped)
        session = self._cache.session
        ids, stop_reason = decode(
            self._model, session, limits, sampling, grammar=self._grammar, on_token=on_token
        )
        self._cache.grew(ids)
        self.turns.append(replace(turn, answer=tuple(ids), stop_reason=stop_reason))
        text = self._model.decode(ids)
        return Reply(ids, text, stop_reason, read_answer(text, stop_reason), len(prompt), reused)


class KeptCache:
    """A session that is asked for one list of ids after another, and computes only what is new.

    What the cache holds is kept if it is the list's beginning; else the fixed part is, which is marked; else
    nothing is.
    """

    def __init__(self, model: Model, capacity_tokens: int) -> None:
        self.session = model.session(capacity_tokens)
        self._held: list[int] = []
        self._marked: list[int] = []

    def hold(self, ids: Sequence[int], pinned: int) -> int:
        """Make the session hold exactly `ids`, the first `pinned` of which stay visible; how many it had.

        One id at least is computed, so that there are logits.
        """
        ids = list(ids)
        is_known = self.session.position == len(self._held)  # an answer that broke off left more behind
        if not is_known or not self._begins(ids, self._held) or self._marked != ids[:pinned]:
            self._go_back(ids, pinned)
        reused = len(self._held)
        if not self._held and pinned:
            self.session.pin(pinned)
            self.session.append(ids[:pinned])
            self.session.mark()
            self._held = self._marked = ids[:pinned]
        self.session.append(ids[len(self._held) :])
        self._held = ids
        return reused

    def grew(self, ids: Sequence[int]) -> None:
        """The session has appended the first of `ids`, as many as its position says."""
        self._held = [*self._held, *ids][: self.session.position]

    def _begins(self, ids: list[int], held: list[int]) -> bool:
        return 0 < len(held) < len(ids) and ids[: len(held)] == held

    def _go_back(self, ids: list[int], pinned: int) -> None:
        if pinned and self._marked == ids[:pinned]:
            self.session.rewind()
            self._held = self._marked
        else:
            self.session.reset()
            self._held = self._marked = []


def render_turns(model: Model, template: PromptTemplate, turns: Sequence[Turn]) -> list[int]:
    """The ids of a conversation up to where the model answers its last turn.

    Each turn is encoded by itself, and an answer stands as the ids that were drawn, with the ends that its
    stopping left out: spelling it again could give others.
    """
    first, *later = turns
    ids = [model.info.bos_id, *model.encode(render_prompt(template, [first.text], 0)), *_closed(model, first)]
    for turn in later:
        ids += _ids_after_text(model, _render_later(turn))
        ids += _closed(model, turn)
    return ids


def compact_result(text: str) -> str:
    """A tool's result as the model has seen them: no white space outside of strings, always a list.

    `<` is written as an escape, so that no text in it becomes a marker, such as the end of the turn. Raises
    `SessionError` (bad_result) for what is no JSON.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        text.encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise SessionError(
            f"tool result: is not JSON: {error}; give one value or a list", code="bad_result"
        ) from None
    compact = OUTSIDE_OF_STRINGS.sub(lambda found: found[1] or "", text).replace("<", r"\u003c")
    return compact if isinstance(value, list) else f"[{compact}]"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _render_later(turn: Turn) -> str:
    if turn.is_result:
        return f"\n<|im_start|>tool\n<tool_result>{turn.text}</tool_result>{ASSISTANT}"
    return f"\n<|im_start|>user\n{turn.text}{ASSISTANT}"


def _ids_after_text(model: Model, text: str) -> list[int]:
    """The ids of a text that begins with a line end and follows another: without a second dummy prefix."""
    line_end = model.encode("\n")
    return [line_end[-1], *model.encode(text)[len(line_end) :]]


def _closed(model: Model, turn: Turn) -> list[int]:
    """An answer's ids and `<|im_end|>`; one that was cut off stays open."""
    if turn.answer is None:
        return []
    end = model.info.im_end_id
    return [*turn.answer, *([end] if turn.stop_reason == "stop" and end is not None else [])]


def _calls(model: Model, turn: Turn) -> bool:
    reading = read_answer(model.decode(turn.answer or ()), turn.stop_reason or "stop")
    return reading.success and bool(reading.function_calls)
