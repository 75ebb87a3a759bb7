"""What a dispatcher did with the scripted conversations, down to logits: the material that parity compares.

Owns: wrappers around `Model` and `Session` that write down prompts, scores, draws and the logits behind
them, and the run over all conversations. Any model that has the interface can stand behind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import builder.family.family as published
from builder.reference.answers import Answer
from builder.reference.dispatcher import Dispatcher, Family, Member, ModelSource
from builder.reference.prompts import PromptTemplate
from builder.reference.telemetry import RouteRecord
from builder.runtime.interface import Detokenizer, Grammar, Model, ModelInfo, Sampling, Session

CONVERSATIONS = Path(__file__).with_name("conversations.json")
OF_THE_DEMO = {"demo-c05", "demo-c10", "demo-c13", "demo-c29"}
"""One conversation per specialist and one without any stand for those of examples/demo."""
ALIKE = {"a-b-a-base", "refusal", "long", "long-base", "long-kitchen", "long-truncated-media"}
ALIKE |= {"long-truncated-kitchen"}
"""Another conversation takes the same way, with other members or words."""


@dataclass
class SessionLog:
    """One session: the prompt, then either scores or draws."""

    member: str
    prompt_ids: list[int] = field(default_factory=list)
    scores: list[tuple[list[int], float]] = field(default_factory=list)
    """Ids and their log probability after the prompt."""
    drawn_ids: list[int] = field(default_factory=list)
    """Every id that was drawn, the one that stopped included."""
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    """What each of them was drawn from, (out_vocab,) f32."""
    allowed: list[NDArray[np.bool_] | None] = field(default_factory=list)
    """What the tools allowed there, (out_vocab,); None where they allowed the model's first choice."""


@dataclass(frozen=True)
class Response:
    """One answered turn."""

    conversation: str
    turn: int
    answer: Answer
    record: RouteRecord
    sessions: list[SessionLog]

    @property
    def name(self) -> str:
        """For messages: which turn this is."""
        return f"{self.conversation}[{self.turn}]"


def run_conversations(
    family: Family, source: ModelSource, conversations: Sequence[dict[str, Any]]
) -> list[Response]:
    """Answer every turn of every conversation, in order, with one dispatcher."""
    recording = _RecordingSource(source)
    dispatcher = Dispatcher(family, recording)
    responses = []
    for conversation in conversations:
        for turn in range(len(conversation["turns"])):
            recording.sessions = []
            answer, record = dispatcher.respond(conversation["turns"][: turn + 1])
            responses.append(Response(conversation["id"], turn, answer, record, recording.sessions))
    return responses


def read_conversations() -> list[dict[str, Any]]:
    """The scripted conversations: `{"id", "about", "turns"}`, the turns being the user's."""
    return json.loads(CONVERSATIONS.read_text("utf-8"))


def unlike_conversations() -> list[dict[str, Any]]:
    """Those that differ in kind: for models that take ten times as long as the engine."""
    scripted = [c for c in read_conversations() if c["id"] not in ALIKE]
    return [c for c in scripted if not c["id"].startswith("demo-") or c["id"] in OF_THE_DEMO]


def dispatch_family(family: published.Family) -> Family:
    """What the dispatcher must know of a published family."""

    def member(m: published.Member) -> Member:
        prompt = PromptTemplate(m.system, m.tools, m.context_turns)
        return Member(m.id, prompt) if m.max_new_tokens is None else Member(m.id, prompt, m.max_new_tokens)

    router = member(family.router) if family.router else None
    return Family(member(family.base), tuple(map(member, family.specialists)), router)


def logits_sha256(logits: NDArray[np.float32]) -> str:
    """SHA-256 over little-endian f32: what Chromium and wasmtime must have in common bit for bit."""
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()


class _RecordingSource:
    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self.sessions: list[SessionLog] = []

    def open(self, member_id: str) -> Model:
        return _RecordingModel(self._source.open(member_id), member_id, self.sessions)


class _RecordingModel:
    def __init__(self, model: Model, member: str, logs: list[SessionLog]) -> None:
        self._model, self._member, self._logs = model, member, logs

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    @property
    def numerics(self) -> str:
        return self._model.numerics

    @property
    def memory_bytes(self) -> int:
        return self._model.memory_bytes

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(ids)

    def detokenizer(self) -> Detokenizer:
        return self._model.detokenizer()

    def grammar(self, tools: str) -> Grammar:
        return self._model.grammar(tools)

    def session(self, capacity_tokens: int, heads: Sequence[str] = ()) -> Session:
        log = SessionLog(self._member)
        self._logs.append(log)
        return _RecordingSession(self._model.session(capacity_tokens, heads), log)


class _RecordingSession:
    def __init__(self, session: Session, log: SessionLog) -> None:
        self._session, self._log = session, log

    @property
    def position(self) -> int:
        return self._session.position

    def append(self, ids: Sequence[int]) -> None:
        self._session.append(ids)
        if not self._log.prompt_ids:
            self._log.prompt_ids = list(ids)

    def logits(self) -> NDArray[np.float32]:
        return self._session.logits()

    def score(self, ids: Sequence[int]) -> float:
        score = self._session.score(ids)
        self._log.scores.append((list(ids), score))
        return score

    def sample(self, sampling: Sampling, grammar: Grammar | None = None, room_tokens: int = 0) -> int:
        logits = self._session.logits()
        drawn_id = self._session.sample(sampling, grammar, room_tokens)
        is_free = grammar is None or drawn_id == logits.argmax()
        self._log.allowed.append(None if is_free else grammar.allowed(room_tokens))
        self._log.logits.append(logits)
        self._log.drawn_ids.append(drawn_id)
        return drawn_id

    def head(self, name: str) -> NDArray[np.float32]:
        return self._session.head(name)

    def pin(self, token_count: int) -> None:
        self._session.pin(token_count)

    def mark(self) -> None:
        self._session.mark()

    def rewind(self) -> None:
        self._session.rewind()

    def reset(self) -> None:
        self._session.reset()
