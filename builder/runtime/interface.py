"""What a running model looks like to the rest of Saguaro: the engine and the reference both have this shape.

Owns: the structural types `Model`, `Session`, `Grammar`, `Detokenizer`, the plain data `ModelInfo` and
`Sampling`, and `embed`, which is the same for every model.
Knows nothing of: WebAssembly, torch, prompts, files. Mirrors `engine/include/saguaro.h`, call by call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from builder.errors import SessionError, refusal

GREEDY_TEMPERATURE = 0.0
HEADS = {"embedding": 1, "confidence": 2, "router": 3}
"""Probe heads by their number in `enum sg_head_code`; generation 2 calls its embedding `contrastive`."""


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a loaded container (`struct sg_model_info`); a marker that the tokenizer lacks is None."""

    tag: int
    vocab_count: int
    logit_count: int
    piece_count: int
    layer_count: int
    d_model: int
    max_seq_len: int
    pad_id: int
    eos_id: int
    bos_id: int
    unk_id: int
    im_start_id: int | None
    im_end_id: int | None
    think_open_id: int | None
    think_close_id: int | None
    tool_call_open_id: int | None
    tool_call_close_id: int | None
    heads: tuple[str, ...] = ()
    """Those of `HEADS` that the file has."""


@dataclass
class Sampling:
    """How the next id is drawn (`struct sg_sampling`); every draw moves `random_state` (docs/numerics.md)."""

    temperature: float = GREEDY_TEMPERATURE
    top_p: float = 1.0
    top_k: int = 0
    random_state: int = 0


class Detokenizer(Protocol):
    """Streaming decode of one answer; incomplete UTF-8 is held back until it is complete or hopeless."""

    def push(self, token_id: int) -> str:
        """Text that has become certain with this id; may be empty."""
        ...

    def flush(self) -> str:
        """The rest, with U+FFFD for bytes that never became a character."""
        ...


class Grammar(Protocol):
    """One answer held to the declared tools from `<tool_call>` to `</tool_call>` (docs/grammar.md)."""

    def reset(self) -> None:
        """Back to the start of an answer."""
        ...

    def accept(self, token_id: int) -> None:
        """Move on by an id that the answer keeps. Raises `SessionError` (bad_token) if it does not fit."""
        ...

    def takes(self, token_id: int, room_tokens: int) -> bool:
        """Whether this id may come next if the answer keeps at most `room_tokens` more."""
        ...

    def allowed(self, room_tokens: int) -> NDArray[np.bool_]:
        """Which ids may come next, (logit_count,)."""
        ...


class Session(Protocol):
    """One KV cache. Every method that fails leaves the session as it was and raises `SessionError`."""

    @property
    def position(self) -> int:
        """Number of tokens that the cache holds."""
        ...

    def append(self, ids: Sequence[int]) -> None:
        """Add tokens; `logits` are then those after the last one. Raises `context_full`, `bad_token`."""
        ...

    def logits(self) -> NDArray[np.float32]:
        """A copy, (logit_count,) f32. Raises `bad_state` before the first append."""
        ...

    def score(self, ids: Sequence[int]) -> float:
        """Sum of ln p(id | all before) over the ids as if appended; the session stays as it was."""
        ...

    def sample(self, sampling: Sampling, grammar: Grammar | None = None, room_tokens: int = 0) -> int:
        """Draw the next id from the present logits without appending it; greedy ties go to the lower id.

        With a grammar, which is one of the same model's: among the ids that it allows for `room_tokens`.
        """
        ...

    def head(self, name: str) -> NDArray[np.float32]:
        """What a probe head makes of the tokens so far, (outputs,) f32: a vector of length 1 (embedding), a
        probability (confidence), logits (router).

        Raises `bad_state` before the first append and for a head that the session was not opened with.
        """
        ...

    def pin(self, token_count: int) -> None:
        """Keep the first tokens visible behind the KV window of generation 2; call it before appending them.

        Raises `UsageError` (bad_argument) for a negative number and beyond the capacity.
        """
        ...

    def mark(self) -> None:
        """Remember the present state (one mark per session)."""
        ...

    def rewind(self) -> None:
        """Return to the mark. Raises `bad_state` without one."""
        ...

    def reset(self) -> None:
        """Back to the state after open: a fresh cache."""
        ...


class Model(Protocol):
    """One loaded member: tokenizer, weights, sessions. Sessions of one model do not disturb each other."""

    @property
    def info(self) -> ModelInfo:
        """Facts from the container."""
        ...

    @property
    def numerics(self) -> str:
        """`exact` or `fast`, as every answer reports it."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes that this model holds now, sessions included where they live in the same memory."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without BOS."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; U+FFFD for every maximal part that is not UTF-8."""
        ...

    def detokenizer(self) -> Detokenizer:
        """A fresh streaming decoder."""
        ...

    def grammar(self, tools: str) -> Grammar:
        """The grammar of declared tools at the start of an answer. Raises `GrammarError` (grammar_*)."""
        ...

    def session(self, capacity_tokens: int, heads: Sequence[str] = ()) -> Session:
        """A fresh cache for up to `capacity_tokens` tokens, in which these probe heads take part.

        Raises `UsageError`: `bad_argument` above `max_seq_len`, `unknown_head` for a head that is not in
        `info.heads`.
        """
        ...


def embed(model: Model, text: str) -> NDArray[np.float32]:
    """The text's vector of length 1, by the embedding head; dot products of two are cosines.

    Raises `UsageError` (unknown_head) for a model without one, `SessionError` (context_full, bad_utf8).
    """
    ids = [model.info.bos_id, *model.encode(text)]
    if len(ids) > model.info.max_seq_len:
        found, allowed = len(ids), f"at most {model.info.max_seq_len} tokens"
        raise SessionError(refusal("text", "length", found=found, allowed=allowed), code="context_full")
    session = model.session(len(ids), ("embedding",))
    session.append(ids)
    return session.head("embedding")
