"""Who answers: route once, let the chosen member answer, and let the base answer whenever anything is in
doubt.

Owns: docs/dispatch.md from a conversation to an answer and its route record.
Does not know: sites, downloads, budgets (a `ModelSource` does), torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from builder.errors import GrammarError, SaguaroError, SessionError
from builder.reference.answers import Answer, error_answer, read_answer
from builder.reference.generation import generate, never
from builder.reference.prompts import PromptTemplate, clean_conversation, count_fixed, fit_prompt
from builder.reference.router import BASE_INDEX, choose, score_candidates
from builder.reference.telemetry import Reason, RouteLog, RouteRecord
from builder.runtime.interface import Model, Sampling

MAX_NEW_TOKENS = 128


@dataclass(frozen=True)
class Member:
    """What the dispatcher must know of a member."""

    id: str
    prompt: PromptTemplate = field(default_factory=PromptTemplate)
    max_new_tokens: int = MAX_NEW_TOKENS

    @property
    def holds_calls_to_tools(self) -> bool:
        """Whether a grammar holds its answers: always where it declares tools."""
        return self.prompt.tools != ""


@dataclass(frozen=True)
class Family:
    """The candidates in manifest order, and the router if there is one."""

    base: Member
    specialists: tuple[Member, ...] = ()
    router: Member | None = None
    numerics: str = "exact"
    """What the manifest names; each answer says what its model really had."""

    @property
    def candidates(self) -> tuple[Member, ...]:
        """The base, then the specialists."""
        return (self.base, *self.specialists)


class ModelSource(Protocol):
    """Where loaded models come from."""

    def open(self, member_id: str) -> Model:
        """The member's model. Raises `MemberError`, its code being the route record's reason."""
        ...


class Listener(Protocol):
    """Told about an answer while it is made; a later `begin` means that the text so far was discarded."""

    def begin(self, member_id: str) -> None:
        """This member starts to answer."""
        ...

    def text(self, piece: str) -> None:
        """More of its text."""
        ...

    def unavailable(self, member_id: str, error: SaguaroError) -> None:
        """This member cannot answer, and why; the record holds one word only."""
        ...


class Dispatcher:
    """Answers conversations with the members of one family."""

    def __init__(self, family: Family, source: ModelSource, log: RouteLog | None = None) -> None:
        self._family, self._source = family, source
        self.log = log if log is not None else RouteLog()

    def respond(
        self,
        turns: Sequence[str],
        *,
        sampling: Sampling | None = None,
        listener: Listener | None = None,
        stopped: Callable[[], bool] = never,
    ) -> tuple[Answer, RouteRecord]:
        """Answer the last of the user's `turns`; nothing here raises for what a user typed or a member did.

        `sampling` is not changed; the base starts from the same random state when it takes over.
        """
        request = _Request(sampling or Sampling(), listener or _Nobody(), stopped)
        try:
            cleaned = clean_conversation(turns)
        except SessionError as error:
            answer = error_answer(error.code, str(error), self._family.base.id, self._family.numerics)
            return answer, self._record(BASE_INDEX, BASE_INDEX, None, "none")
        selected, scores, reason = self._route(cleaned, request)
        specialist_answer = None
        if selected != BASE_INDEX:
            specialist = self._family.candidates[selected]
            specialist_answer, reason = self._answer_with_specialist(specialist, cleaned, request)
        effective = BASE_INDEX if specialist_answer is None else selected
        answer = specialist_answer or self._answer_with_base(cleaned, request)
        record = self._record(selected, effective, scores, reason)
        self.log.add(record)
        return answer, record

    def _route(self, turns: Sequence[str], request: _Request) -> tuple[int, Sequence[float] | None, Reason]:
        router = self._family.router
        if router is None or not self._family.specialists:
            return BASE_INDEX, None, "none"
        specialist_ids = [member.id for member in self._family.specialists]
        try:
            model = self._source.open(router.id)
            scores = score_candidates(model, router.prompt, specialist_ids, turns)
        except SaguaroError as error:
            request.listener.unavailable(router.id, error)
            reason: Reason = "context_full" if error.code == "context_full" else "router_unavailable"
            return BASE_INDEX, None, reason
        return choose(scores), scores, "none"

    def _answer_with_specialist(
        self, member: Member, turns: Sequence[str], request: _Request
    ) -> tuple[Answer | None, Reason]:
        """The specialist's answer, or None and the reason why the base must answer."""
        try:
            model = self._source.open(member.id)
        except SaguaroError as error:
            request.listener.unavailable(member.id, error)
            return None, _OPEN_REASONS.get(error.code, "member_unavailable")
        try:
            answer = _answer(model, member, turns, request)
        except SaguaroError as error:
            request.listener.unavailable(member.id, error)
            return None, _reason_of(error)
        if answer.stop_reason == "length":
            return None, "answer_truncated"
        if not answer.success and answer.stop_reason != "aborted":
            return None, "answer_malformed"
        return answer, "none"

    def _answer_with_base(self, turns: Sequence[str], request: _Request) -> Answer:
        base = self._family.base
        try:
            return _answer(self._source.open(base.id), base, turns, request)
        except SaguaroError as error:
            return error_answer(error.code, str(error), base.id, self._family.numerics)

    def _record(
        self, selected: int, effective: int, scores: Sequence[float] | None, reason: Reason
    ) -> RouteRecord:
        ids = tuple(member.id for member in self._family.candidates)
        no_scores = (0.0, *(None for _ in self._family.specialists))
        return RouteRecord(selected, effective, tuple(scores or no_scores), reason != "none", reason, ids)


@dataclass(frozen=True)
class _Request:
    """What a caller asked for besides the conversation."""

    sampling: Sampling
    listener: Listener
    stopped: Callable[[], bool]


class _Nobody:
    """A listener that does not care."""

    def begin(self, member_id: str) -> None:
        pass

    def text(self, piece: str) -> None:
        pass

    def unavailable(self, member_id: str, error: SaguaroError) -> None:
        pass


_OPEN_REASONS: dict[str, Reason] = {
    "over_budget": "over_budget",
    "out_of_memory": "over_budget",
    "worker_lost": "worker_lost",
}


def _reason_of(error: SaguaroError) -> Reason:
    """Why a member that could be opened gave no answer."""
    if error.code == "context_full":
        return "context_full"
    return "member_unavailable" if isinstance(error, GrammarError) else "worker_lost"


def _answer(model: Model, member: Member, turns: Sequence[str], request: _Request) -> Answer:
    """One member's answer from a fresh cache. Raises `SessionError` (context_full)."""
    prompt_ids = fit_prompt(model, member.prompt, turns, member.max_new_tokens)
    grammar = model.grammar(member.prompt.tools) if member.holds_calls_to_tools else None
    request.listener.begin(member.id)
    detokenizer = model.detokenizer()
    made = generate(
        model,
        prompt_ids,
        member.max_new_tokens,
        replace(request.sampling),
        grammar=grammar,
        pinned=count_fixed(model, member.prompt, prompt_ids),
        on_token=lambda token_id: request.listener.text(detokenizer.push(token_id)),
        stopped=request.stopped,
    )
    request.listener.text(detokenizer.flush())
    text = model.decode(made.token_ids)
    reading = read_answer(text, made.stop_reason)
    return Answer(
        type=reading.type,
        success=reading.success,
        error=reading.error,
        error_code=reading.error_code,
        function_calls=reading.function_calls,
        reasoning=reading.reasoning,
        confidence=made.confidence,
        prefill_tps=_rate(len(prompt_ids), made.prefill_seconds),
        decode_tps=_rate(len(made.token_ids), made.decode_seconds),
        peak_ram_mb=round(model.memory_bytes / 1e6, 1),
        text=text,
        token_ids=made.token_ids,
        prompt_tokens=len(prompt_ids),
        stop_reason=made.stop_reason,
        numerics=model.numerics,
        member=member.id,
    )


def _rate(token_count: int, seconds: float) -> float:
    return round(token_count / seconds, 1) if seconds > 0 else 0.0
