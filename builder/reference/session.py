"""The PyTorch model behind the interface that the engine has: `Model` and `Session` of builder/runtime.

Owns: sessions with a cache and sessions without one (the full-history path), argument checks, text in and
out.
Does not know: prompts, routes, files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from builder.cact.ladder import rung
from builder.cact.reader import Container, read_container
from builder.errors import ContainerError, SessionError, UsageError, refusal
from builder.reference.grammar import ReferenceGrammar, Vocabulary
from builder.reference.heads import head_names, open_head
from builder.reference.model import NeedleModel, Past
from builder.reference.sampling import draw, log_softmax
from builder.reference.shared_prefill import SharedPrefill
from builder.reference.tokenizer import ReferenceDetokenizer, ReferenceTokenizer
from builder.runtime.interface import GREEDY_TEMPERATURE, Grammar, ModelInfo, Sampling

State = TypeVar("State")
History = tuple[tuple[int, int], ...]
"""Each id with what was pinned when it came."""
PREFILL_TOKENS = 32
"""A prompt is read in blocks that start at multiples of this, so that members can share whole blocks."""


class ReferenceModel:
    """One member in PyTorch. Raises `ContainerError` for a container that the reference cannot run.

    `depth` opens that rung of the ladder; `UsageError` (bad_depth) where the container does not have it.
    `use_cache=False` computes every step from the full history: slow, and the same tokens. `shared` lets
    members compute what is identical between them once (see shared_prefill.py).
    """

    numerics = "exact"

    def __init__(
        self,
        container: Container,
        *,
        depth: int | None = None,
        use_cache: bool = True,
        shared: SharedPrefill | None = None,
    ) -> None:
        tokenizer_blob = container.tokenizer_blob
        if tokenizer_blob is None:
            message = refusal(container.subject, "tokenizer", found="absent", allowed="there, for text")
            raise ContainerError(message, code="cact_bad_tokenizer")
        container = rung(container, depth)
        self.network = NeedleModel(container)
        self._heads = {name: open_head(container, name) for name in head_names(container)}
        self.tokenizer = ReferenceTokenizer(tokenizer_blob)
        self.info = _describe(container, self.tokenizer)
        self._use_cache, self._shared = use_cache, shared
        self._vocabulary: Vocabulary | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the float32 weights."""
        return sum(parameter.nbytes for parameter in self.network.parameters())

    def share_prefill(self) -> SharedPrefill:
        """Offer what this model computes to others; pass the result to them as `shared`."""
        self._shared = SharedPrefill(self.network)
        return self._shared

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without BOS."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; U+FFFD for every maximal part that is not UTF-8."""
        detokenizer = self.detokenizer()
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def detokenizer(self) -> ReferenceDetokenizer:
        """A fresh streaming decoder."""
        return ReferenceDetokenizer(self.tokenizer)

    def grammar(self, tools: str) -> ReferenceGrammar:
        """The grammar of declared tools at the start of an answer. Raises `GrammarError` (grammar_*)."""
        self._vocabulary = self._vocabulary or Vocabulary(self.tokenizer.piece_bytes, self.info)
        return ReferenceGrammar(tools, self._vocabulary)

    def session(self, capacity_tokens: int, heads: Sequence[str] = ()) -> CachedSession | HistorySession:
        """A fresh cache for up to `capacity_tokens` tokens, in which these probe heads take part.

        Raises `UsageError`: bad_argument above `max_seq_len`, unknown_head.
        """
        limit = self.info.max_seq_len
        if not 1 <= capacity_tokens <= limit:
            message = refusal("session", "capacity_tokens", found=capacity_tokens, allowed=f"1 to {limit}")
            raise UsageError(message, code="bad_argument")
        unknown = next((head for head in heads if head not in self._heads), None)
        if unknown is not None:
            known = ", ".join(self._heads) or "none"
            raise UsageError(f"session: has no {unknown!r} head; heads: {known}", code="unknown_head")
        listening = {head: self._heads[head] for head in heads}
        if self._use_cache:
            return CachedSession(self.network, capacity_tokens, listening, self._shared)
        return HistorySession(self.network, capacity_tokens, listening)


class ReferenceOpener:
    """Opens the members of one family; the first to be opened shares its prefill with the others.

    Torch is set to one thread: sums then have one order on every machine, and small matrices are faster.
    """

    def __init__(self, depth: int | None = None) -> None:
        torch.set_num_threads(1)
        self._depth = depth
        self._shared: SharedPrefill | None = None

    def __call__(self, data: bytes, member_id: str) -> ReferenceModel:
        """A member's model from its container's bytes."""
        model = ReferenceModel(read_container(data), depth=self._depth, shared=self._shared)
        self._shared = self._shared or model.share_prefill()
        return model


class TorchSession(ABC, Generic[State]):
    """What both kinds share. States are immutable values: mark, rewind and score only keep old ones."""

    def __init__(
        self, network: NeedleModel, capacity_tokens: int, heads: Mapping[str, nn.Module] | None = None
    ) -> None:
        self._network, self._capacity, self._heads = network, capacity_tokens, heads or {}
        self._pinned = 0
        self._history: History = ()
        self._state: State = self._start()
        self._logits: Tensor | None = None
        self._mark: tuple[History, int, State, Tensor | None] | None = None

    @property
    def position(self) -> int:
        """Number of tokens that the cache holds."""
        return len(self._history)

    def append(self, ids: Sequence[int]) -> None:
        """Add tokens; `logits` are then those after the last one."""
        self._check(ids, self._network.header.vocab_count)
        if ids:
            self._state, streams = self._extend(self._state, list(ids))
            self._logits = self._read(streams[:, -1:])[0]
            self._history += tuple((token_id, self._pinned) for token_id in ids)

    def logits(self) -> NDArray[np.float32]:
        """A copy, (logit_count,) f32."""
        return self._present_logits().numpy().copy()

    def head(self, name: str) -> NDArray[np.float32]:
        """What a probe head makes of the tokens so far, (outputs,) f32, from the full history.

        Raises `SessionError` (bad_state) before the first append and for a head that the session was not
        opened with.
        """
        if name not in self._heads:
            sentence = f"session: was not opened with the head {name!r}; name it in heads"
            raise SessionError(sentence, code="bad_state")
        self._present_logits()
        past, parts = self._network.empty_past(), []
        with torch.inference_mode():
            for pinned, ids in _runs(self._history):
                cells, past = self._network.extend_cells(ids, replace(past, pinned=pinned))
                parts.append(cells)
            found: Tensor = self._heads[name](torch.cat(parts, dim=1))[0]
        return found.numpy().copy()

    def score(self, ids: Sequence[int]) -> float:
        """Sum of ln p(id | all before); the session stays as it was."""
        rows = [self._present_logits()]
        self._check(ids, self._network.header.logit_count)
        if len(ids) > 1:
            _, streams = self._extend(self._state, list(ids[:-1]))
            rows.extend(self._read(streams[:, -(len(ids) - 1) :]))
        return float(sum(log_softmax(row.numpy())[i] for row, i in zip(rows, ids, strict=False)))

    def sample(self, sampling: Sampling, grammar: Grammar | None = None, room_tokens: int = 0) -> int:
        """Draw the next id from the present logits without appending it; only what a grammar allows."""
        logits = self._present_logits().numpy()
        if grammar is None:
            return draw(logits, sampling)
        if sampling.temperature == GREEDY_TEMPERATURE and grammar.takes(int(logits.argmax()), room_tokens):
            return draw(logits, sampling)  # a trained model's first choice nearly always fits
        allowed = grammar.allowed(room_tokens)
        if not allowed.any():
            raise SessionError("session: the grammar allows no id in this room", code="bad_state")
        return draw(logits, sampling, allowed)

    def pin(self, token_count: int) -> None:
        """Keep the first tokens visible behind the KV window of generation 2; call it before appending them.

        Raises `UsageError` (bad_argument) for a negative number and beyond the capacity.
        """
        if not 0 <= token_count <= self._capacity:
            allowed = f"0 to {self._capacity}"
            message = refusal("session", "token_count", found=token_count, allowed=allowed)
            raise UsageError(message, code="bad_argument")
        self._pinned = token_count

    def mark(self) -> None:
        """Remember the present state."""
        self._mark = (self._history, self._pinned, self._state, self._logits)

    def rewind(self) -> None:
        """Return to the mark."""
        if self._mark is None:
            raise SessionError("session: there is no mark to return to; call mark first", code="bad_state")
        self._history, self._pinned, self._state, self._logits = self._mark

    def reset(self) -> None:
        """A fresh cache."""
        self._history, self._pinned, self._state, self._logits = (), 0, self._start(), None

    @abstractmethod
    def _start(self) -> State: ...

    @abstractmethod
    def _extend(self, state: State, ids: list[int]) -> tuple[State, Tensor]:
        """The state with the ids in it, and lanes (1, T, N, D) whose last rows are those of the ids."""

    def _read(self, streams: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._network.readout(streams)[0]  # (T, logit_count)

    def _present_logits(self) -> Tensor:
        if self._logits is None:
            raise SessionError(
                "session: there are no logits before the first token; append one", code="bad_state"
            )
        return self._logits

    def _check(self, ids: Sequence[int], id_count: int) -> None:
        for token_id in ids:
            if not 0 <= token_id < id_count:
                message = refusal("session", "token id", found=token_id, allowed=f"0 to {id_count - 1}")
                raise SessionError(message, code="bad_token")
        if self.position + len(ids) > self._capacity:
            wanted = self.position + len(ids)
            message = refusal("session", "length", found=wanted, allowed=f"at most {self._capacity} tokens")
            raise SessionError(message, code="context_full")


class CachedSession(TorchSession[Past]):
    """Each token is computed once; the prompt in blocks, the answer token by token."""

    def __init__(
        self,
        network: NeedleModel,
        capacity_tokens: int,
        heads: Mapping[str, nn.Module] | None = None,
        shared: SharedPrefill | None = None,
    ) -> None:
        self._shared = shared
        super().__init__(network, capacity_tokens, heads)

    def _start(self) -> Past:
        return self._network.empty_past()

    def _extend(self, state: Past, ids: list[int]) -> tuple[Past, Tensor]:
        share = self._shared if state.position == 0 else None
        state = replace(state, pinned=self._pinned)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(ids), PREFILL_TOKENS):
                block = ids[start : start + PREFILL_TOKENS]
                if share is None:
                    streams, state = self._network.extend(torch.tensor([block]), state)
                else:
                    streams, state = share.extend(self._network, ids[: start + len(block)], state)
                parts.append(streams)
        return state, torch.cat(parts, dim=1)


class HistorySession(TorchSession[History]):
    """No cache: every call runs the whole history through `NeedleModel.forward`'s path again.

    Where what is pinned changed, the history runs in parts.
    """

    def _start(self) -> History:
        return ()

    def _extend(self, state: History, ids: list[int]) -> tuple[History, Tensor]:
        history = (*state, *((token_id, self._pinned) for token_id in ids))
        past = self._network.empty_past()
        with torch.inference_mode():
            for pinned, run in _runs(history):
                streams, past = self._network.extend(run, replace(past, pinned=pinned))
        return history, streams


def _runs(history: History) -> Iterator[tuple[int, Tensor]]:
    """(pinned, ids (1, T)) of each run of tokens for which as many were pinned."""
    for pinned, part in groupby(history, key=lambda entry: entry[1]):
        yield pinned, torch.tensor([[token_id for token_id, _ in part]])


def _describe(container: Container, tokenizer: ReferenceTokenizer) -> ModelInfo:
    header, table = container.header, tokenizer.table
    return ModelInfo(
        tag=header.tag,
        vocab_count=header.vocab_count,
        logit_count=header.logit_count,
        piece_count=len(table.pieces),
        layer_count=header.layer_count,
        d_model=header.d_model,
        max_seq_len=header.max_seq_len,
        pad_id=table.pad_id,
        eos_id=table.eos_id,
        bos_id=table.bos_id,
        unk_id=table.unk_id,
        im_start_id=tokenizer.piece_id("<|im_start|>"),
        im_end_id=tokenizer.piece_id("<|im_end|>"),
        think_open_id=tokenizer.piece_id("<think>"),
        think_close_id=tokenizer.piece_id("</think>"),
        tool_call_open_id=tokenizer.piece_id("<tool_call>"),
        tool_call_close_id=tokenizer.piece_id("</tool_call>"),
        heads=head_names(container),
    )
