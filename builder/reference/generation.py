"""From a prompt to an answer's ids: the loop and its stop rules.

Owns: the section "Generation" of docs/dispatch.md, for the engine and for PyTorch alike.
Does not know: text, members, how logits are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from builder.reference.answers import StopReason
from builder.runtime.interface import Grammar, Model, Sampling, Session

CONFIDENCE = "confidence"
"""The head that judges an answer."""


def never() -> bool:
    """The user does not stop the answer."""
    return False


def nobody(token_id: int) -> None:
    """No one listens to the answer while it is made."""


@dataclass(frozen=True)
class Generation:
    """What came out of one prompt."""

    token_ids: list[int]
    stop_reason: StopReason
    prefill_seconds: float
    decode_seconds: float
    logits: NDArray[np.float32] | None
    """(steps, logit_count) f32 that each step chose from, the stopping one included; None if not kept."""
    confidence: float | None = None
    """What the confidence head makes of prompt and answer; None without one, or if the answer has no end."""


@dataclass(frozen=True)
class Limits:
    """What ends an answer besides its own words."""

    max_new_tokens: int
    capacity_tokens: int
    """Of the session."""
    stopped: Callable[[], bool] = never


def decode(
    model: Model,
    session: Session,
    limits: Limits,
    sampling: Sampling,
    *,
    grammar: Grammar | None = None,
    on_token: Callable[[int], None] = nobody,
    on_logits: Callable[[NDArray[np.float32]], None] | None = None,
) -> tuple[list[int], StopReason]:
    """An answer to what the session holds: the ids that are kept, and why they end.

    The last id is drawn and not appended.
    """
    token_ids: list[int] = []
    if grammar is not None:
        grammar.reset()
    while not limits.stopped():
        if on_logits is not None:
            on_logits(session.logits())
        room_tokens = min(
            limits.max_new_tokens - len(token_ids), limits.capacity_tokens - session.position + 1
        )
        token_id = session.sample(sampling, grammar, room_tokens)
        if token_id in (model.info.im_end_id, model.info.eos_id):
            return token_ids, "stop"
        token_ids.append(token_id)
        if grammar is not None:
            grammar.accept(token_id)
        on_token(token_id)
        if token_id == model.info.tool_call_close_id:
            return token_ids, "stop"
        if room_tokens == 1:
            return token_ids, "length"
        session.append([token_id])
    return token_ids, "aborted"


def generate(
    model: Model,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    *,
    grammar: Grammar | None = None,
    pinned: int = 0,
    on_token: Callable[[int], None] = nobody,
    stopped: Callable[[], bool] = never,
    keep_logits: bool = False,
) -> Generation:
    """Answer `prompt_ids` from a fresh cache. `sampling.random_state` moves on; raises `SessionError`
    (context_full).

    The first `pinned` ids stay visible behind the KV window of generation 2.
    `stopped` is asked before each token; `on_token` gets each id that is kept, as soon as it is chosen. A
    `grammar` of the same model holds the answer's calls to its tools.
    """
    capacity = min(model.info.max_seq_len, len(prompt_ids) + max_new_tokens)
    session = model.session(capacity, tuple(head for head in model.info.heads if head == CONFIDENCE))
    session.pin(pinned)
    started = time.perf_counter()
    session.append(prompt_ids)
    prefilled = time.perf_counter()
    rows: list[NDArray[np.float32]] = []
    limits = Limits(max_new_tokens, capacity, stopped)
    listener = rows.append if keep_logits else None
    token_ids, stop_reason = decode(
        model, session, limits, sampling, grammar=grammar, on_token=on_token, on_logits=listener
    )
    finished = time.perf_counter()
    logits = np.stack(rows) if keep_logits else None
    answer_ids = [*prompt_ids, *token_ids]
    confidence = _confidence(model, session, answer_ids, capacity) if stop_reason == "stop" else None
    return Generation(token_ids, stop_reason, prefilled - started, finished - prefilled, logits, confidence)


def _confidence(model: Model, session: Session, ids: Sequence[int], capacity: int) -> float | None:
    """The head hears the whole answer: an id that ended it was drawn and not yet appended."""
    if CONFIDENCE not in model.info.heads or len(ids) > capacity:
        return None
    session.append(ids[session.position :])
    return float(session.head(CONFIDENCE)[0])
