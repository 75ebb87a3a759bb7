"""A model that says what a test wrote down: one id per character, one per marker."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from builder.errors import SessionError
from builder.runtime.interface import Grammar, ModelInfo, Sampling

MARKERS = (
    "<eos>",
    "<bos>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
FIRST_CHARACTER = len(MARKERS)
EOS, BOS, IM_START, IM_END, THINK, END_THINK, CALL, END_CALL = range(FIRST_CHARACTER)


class ScriptedModel:
    """Answers a prompt with `answer(prompt text)`; scores a call by its text."""

    numerics = "exact"
    memory_bytes = 2_500_000

    def __init__(
        self,
        answer: Callable[[str], str] | str = "",
        *,
        log_probabilities: Mapping[str, float] | None = None,
        max_seq_len: int = 10_000,
        fails_with: Exception | None = None,
        heads: tuple[str, ...] = (),
    ) -> None:
        self.answer = (lambda prompt: answer) if isinstance(answer, str) else answer
        self.log_probabilities = dict(log_probabilities or {})
        self.fails_with = fails_with
        self.sessions: list[ScriptedSession] = []
        self.grammars: list[str] = []
        self.info = ModelInfo(
            tag=0x05E12A84,
            vocab_count=0x110000,
            logit_count=0x110000,
            piece_count=0x110000,
            layer_count=1,
            d_model=1,
            max_seq_len=max_seq_len,
            pad_id=EOS,
            eos_id=EOS,
            bos_id=BOS,
            unk_id=EOS,
            im_start_id=IM_START,
            im_end_id=IM_END,
            think_open_id=THINK,
            think_close_id=END_THINK,
            tool_call_open_id=CALL,
            tool_call_close_id=END_CALL,
            heads=heads,
        )

    def encode(self, text: str) -> list[int]:
        parts = re.split("(" + "|".join(map(re.escape, MARKERS)) + ")", text)
        ids: list[int] = []
        for part in parts:
            ids += [MARKERS.index(part)] if part in MARKERS else [ord(c) + FIRST_CHARACTER for c in part]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(MARKERS[i] if i < FIRST_CHARACTER else chr(i - FIRST_CHARACTER) for i in ids)

    def detokenizer(self) -> ScriptedDetokenizer:
        return ScriptedDetokenizer(self)

    def grammar(self, tools: str) -> ScriptedGrammar:
        self.grammars.append(tools)
        return ScriptedGrammar()

    def session(self, capacity_tokens: int, heads: Sequence[str] = ()) -> ScriptedSession:
        session = ScriptedSession(self, capacity_tokens, heads)
        self.sessions.append(session)
        return session


class ScriptedDetokenizer:
    """Every id is text at once."""

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    def push(self, token_id: int) -> str:
        return self._model.decode([token_id])

    def flush(self) -> str:
        return ""


class ScriptedGrammar:
    """Allows what the script says, whatever it is."""

    def reset(self) -> None:
        pass

    def accept(self, token_id: int) -> None:
        pass

    def takes(self, token_id: int, room_tokens: int) -> bool:
        raise AssertionError("not used")

    def allowed(self, room_tokens: int) -> np.ndarray:
        raise AssertionError("not used")


class ScriptedSession:
    """The first append is the prompt; what follows is the answer so far."""

    def __init__(self, model: ScriptedModel, capacity: int, heads: Sequence[str]) -> None:
        self.model, self.capacity, self.heads = model, capacity, heads
        self.pinned = 0
        self.ids: list[int] = []
        self.prompt = ""
        self.samplings: list[Sampling] = []

    @property
    def position(self) -> int:
        return len(self.ids)

    def append(self, ids: Sequence[int]) -> None:
        if len(self.ids) + len(ids) > self.capacity:
            raise SessionError("scripted: context is full", code="context_full")
        self.ids += ids
        self.prompt = self.prompt or self.model.decode(ids)

    def logits(self) -> np.ndarray:
        return np.array([self.position], np.float32)

    def score(self, ids: Sequence[int]) -> float:
        return self.model.log_probabilities[self.model.decode(ids)]

    def sample(self, sampling: Sampling, grammar: Grammar | None = None, room_tokens: int = 0) -> int:
        self.samplings.append(sampling)
        sampling.random_state += 1
        answer = self.model.encode(self.model.answer(self.prompt))
        said = self.position - len(self.model.encode(self.prompt))
        if self.model.fails_with is not None and said >= len(answer):
            raise self.model.fails_with
        return answer[said] if said < len(answer) else IM_END

    def head(self, name: str) -> np.ndarray:
        """The head says how many ids it has heard, as a share of 1000."""
        assert name in self.heads
        return np.array([self.position / 1000], np.float32)

    def pin(self, token_count: int) -> None:
        self.pinned = token_count

    def mark(self) -> None:
        raise AssertionError("not used")

    def rewind(self) -> None:
        raise AssertionError("not used")

    def reset(self) -> None:
        raise AssertionError("not used")
