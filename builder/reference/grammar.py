"""The grammar of tool calls over tokens: which ids may come next in an answer.

Owns: docs/grammar.md, "Ids": where the grammar binds, pieces as bytes, and the room that an end needs. The
engine allows the same ids.
Does not know: logits, prompts, when an answer stops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from builder.errors import GrammarError, SessionError, refusal
from builder.reference.grammar_automaton import Place, finish, is_done, start, step
from builder.reference.grammar_prepare import prepare
from builder.reference.grammar_schema import compile_tools
from builder.runtime.interface import ModelInfo

CALL_OPEN = b"<tool_call>"
SPACE_MARK = b"\xe2\x96\x81"
PIECE_BYTES_MAX = 32
FINISH_BYTES_MAX = 4096


class Vocabulary:
    """The pieces that may stand in a call, by the bytes that they add to a text.

    Raises `GrammarError` (grammar_unsupported) where a byte has no piece or a marker is missing.
    """

    def __init__(self, piece_bytes: Callable[[int], bytes], info: ModelInfo) -> None:
        self.info = info
        special = {info.im_start_id, info.im_end_id, info.think_open_id, info.think_close_id, info.eos_id}
        special |= {info.tool_call_open_id, info.tool_call_close_id}
        self._bytes = [piece_bytes(i) for i in range(min(info.piece_count, info.logit_count))]
        texts = {i: raw.replace(SPACE_MARK, b" ") for i, raw in enumerate(self._bytes) if i not in special}
        self.texts = {i: text for i, text in texts.items() if 0 < len(text) <= PIECE_BYTES_MAX}
        self._lengths = sorted({len(text) for text in self.texts.values()})
        self._known = set(self.texts.values())
        markers = (info.tool_call_open_id, info.tool_call_close_id)
        if any(marker is None or marker >= info.logit_count for marker in markers):
            raise GrammarError("tokenizer: has no <tool_call> or </tool_call>", code="grammar_unsupported")
        if not all(bytes([byte]) in self._known for byte in range(256)):
            raise GrammarError("tokenizer: has no piece for some byte", code="grammar_unsupported")

    def bytes_of(self, token_id: int) -> bytes:
        """What an id adds to plain text."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def fewest_pieces(self, text: bytes) -> int:
        """How many ids spell the text, at least."""
        best = [0] * (len(text) + 1)
        for at in range(len(text) - 1, -1, -1):
            ends = (at + length for length in self._lengths if at + length <= len(text))
            best[at] = 1 + min(best[end] for end in ends if text[at:end] in self._known)
        return best[0]


class ReferenceGrammar:
    """Where one answer stands; see `builder.runtime.interface.Grammar`. Raises `GrammarError` (grammar_*)."""

    def __init__(self, tools: str, vocabulary: Vocabulary) -> None:
        self._vocabulary, self._root = vocabulary, compile_tools(tools)
        prepare(self._root)
        self._costs: dict[bytes, int] = {}
        self.reset()

    def reset(self) -> None:
        """Back to the start of an answer."""
        self._place: Place | None = None
        self._is_thinking = False
        self._tail = b""

    def accept(self, token_id: int) -> None:
        """Move on by an id that the answer keeps. Raises `SessionError` (bad_token) if it does not fit."""
        info = self._vocabulary.info
        if not self.takes(token_id, 2**32 - 1):
            message = refusal("grammar", "token id", found=token_id, allowed="one that fits")
            raise SessionError(message, code="bad_token")
        if self._place is not None and token_id == info.tool_call_close_id:
            self.reset()
        elif self._place is not None:
            self._place = self._walk(self._vocabulary.texts[token_id])
        elif token_id == info.tool_call_open_id:
            self._place = start(self._root)
        else:
            self._tail = (self._tail + self._vocabulary.bytes_of(token_id))[-len(CALL_OPEN) :]
            self._is_thinking |= token_id == info.think_open_id
            self._is_thinking &= token_id != info.think_close_id

    def allowed(self, room_tokens: int) -> NDArray[np.bool_]:
        """Which ids may come next, (logit_count,), if the answer keeps at most `room_tokens` more."""
        mask = np.zeros(self._vocabulary.info.logit_count, np.bool_)
        if self._place is None:
            mask[:] = [self.takes(i, room_tokens) for i in range(len(mask))]
        elif room_tokens > 0:
            prefixes: dict[bytes, Place] = {b"": self._place}
            for token_id, text in self._vocabulary.texts.items():
                behind = _behind(text, prefixes)
                mask[token_id] = bool(behind) and self._can_end(behind, room_tokens - 1)
            mask[self._vocabulary.info.tool_call_close_id] = is_done(self._place)
        return mask

    def takes(self, token_id: int, room_tokens: int) -> bool:
        """Whether the id may come next."""
        info = self._vocabulary.info
        if room_tokens == 0 or not 0 <= token_id < info.logit_count:
            return False
        if self._place is None:
            if token_id == info.tool_call_open_id:
                return not self._is_thinking and self._can_end(start(self._root), room_tokens - 1)
            return CALL_OPEN not in self._tail[1 - len(CALL_OPEN) :] + self._vocabulary.bytes_of(token_id)
        if token_id == info.tool_call_close_id:
            return is_done(self._place)
        text = self._vocabulary.texts.get(token_id)
        behind = self._walk(text) if text is not None else ()
        return bool(behind) and self._can_end(behind, room_tokens - 1)

    def _walk(self, text: bytes) -> Place:
        assert self._place is not None
        return _behind(text, {b"": self._place})

    def _can_end(self, place: Place, room_tokens: int) -> bool:
        """Whether some thread's shortest end and the closing marker fit into the room."""
        ends = (finish(thread) for thread in place)
        return any(self._cost(end) <= room_tokens for end in ends if len(end) <= FINISH_BYTES_MAX)

    def _cost(self, end: bytes) -> int:
        if end not in self._costs:
            self._costs[end] = self._vocabulary.fewest_pieces(end) + 1
        return self._costs[end]


def _behind(text: bytes, prefixes: dict[bytes, Place]) -> Place:
    """The place behind the text, given some places behind its beginnings; empty if it does not fit."""
    if text not in prefixes:
        before = _behind(text[:-1], prefixes)
        prefixes[text] = step(before, text[-1]) if before else ()
    return prefixes[text]
