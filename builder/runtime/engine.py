"""The engine in Python: models, sessions and text, by the same `engine.wasm` that browsers run.

Owns: `Engine`, `EngineModel`, `EngineSession`, `EngineGrammar`, `EngineDetokenizer`, which have the shape of
interface.py.
Knows nothing of: files, prompts, when to stop. Each model has its own instance: its own weights and caches.
"""

from __future__ import annotations

import functools
import struct
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from builder.errors import SaguaroError, SessionError, UsageError, refusal, utf8_of
from builder.runtime.host import WORD_MAX, Instance, compiled, packaged_module
from builder.runtime.interface import HEADS, Grammar, ModelInfo, Sampling

_INFO = struct.Struct("<18I")
_SAMPLING = struct.Struct("<ffIIQ")
_DETOKENIZER_BYTES = 12
_PIECE_BYTES_MAX = 65544
"""`SG_DETOKENIZE_BYTES_MAX`: the most that one id can add to a text."""
_PIECE_OFFSET = 16
"""Where a piece's bytes go on the desk, behind the detokenizer's state and a result word."""
_NO_PIECE = WORD_MAX
"""In `struct sg_model_info`: a marker that the tokenizer lacks."""
_ALL_LAYERS = 0
"""As a depth."""
_WORD_BYTES = 4
_ALIGNMENT_BYTES = 16


NUMERICS = ("exact", "fast")
"""By number, as `enum sg_numerics` counts them (docs/numerics.md)."""


class Engine:
    """A compiled `engine.wasm`: the package's own, or the bytes of another."""

    def __init__(self, wasm: bytes | None = None) -> None:
        self._engine, self._module = packaged_module() if wasm is None else compiled(wasm)

    def instance(self) -> Instance:
        """A fresh instance for calls that no class here makes."""
        return Instance(self._engine, self._module)

    def open(
        self,
        container: bytes | bytearray | memoryview,
        *,
        name: str = "container",
        numerics: str = NUMERICS[0],
        depth: int | None = None,
    ) -> EngineModel:
        """Check a `.cact` file and open it in its own instance; `name` is for messages.

        `depth` opens that rung of the file's ladder, as if the file had only its layers; None opens all.
        Raises `ContainerError` (cact_*), `RefusedError` (out_of_memory), `UsageError` (bad_argument) for
        numerics that are not in `NUMERICS`, `UsageError` (bad_depth) for a rung that the file does not have.
        """
        if depth is not None and not 1 <= depth <= WORD_MAX:
            raise UsageError(refusal(name, "depth", found=depth, allowed="2 or more"), code="bad_depth")
        if numerics not in NUMERICS:
            message = refusal("engine", "numerics", found=numerics, allowed=" or ".join(NUMERICS))
            raise UsageError(message, code="bad_argument")
        instance = self.instance()
        file = (instance.place(container), len(container), depth or _ALL_LAYERS)
        return EngineModel(instance, file, name, numerics)


class EngineModel:
    """One opened container; implements `builder.runtime.interface.Model`."""

    def __init__(self, instance: Instance, file: tuple[int, int, int], name: str, numerics: str) -> None:
        """`file`: address, size, and which rung of its ladder."""
        self._instance, self.name, self.numerics = instance, name, numerics
        self._desk = instance.reserve(_PIECE_OFFSET + _PIECE_BYTES_MAX)
        instance.check(name, "sg_model_measure_rung", *file, self._desk)
        model_bytes = instance.word(self._desk)
        memory = instance.reserve(model_bytes)
        instance.check(name, "sg_model_open_rung", *file, memory, model_bytes, self._desk)
        self._model = instance.word(self._desk)
        self.info = self._describe()

    @property
    def memory_bytes(self) -> int:
        """Bytes that the instance holds now."""
        return self._instance.memory_bytes

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without BOS. Raises `SessionError` (bad_utf8) for lone surrogates."""
        utf8 = utf8_of("text", text)
        instance = self._instance
        scratch_bytes = instance.call("sg_encode_scratch_size", len(utf8))
        id_capacity = 3 * len(utf8) + 3
        ids_at = -(-scratch_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        text_at = ids_at + _WORD_BYTES * id_capacity
        with instance.borrowed(text_at + len(utf8)) as block:
            instance.write(block + text_at, utf8)
            source = (block + text_at, len(utf8))
            target = (block + ids_at, id_capacity, self._desk)
            instance.check("text", "sg_encode", self._model, *source, *target, block, scratch_bytes)
            id_count = instance.word(self._desk)
            raw = instance.read(block + ids_at, _WORD_BYTES * id_count)
        return [int(i) for i in np.frombuffer(raw, "<u4")]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; U+FFFD for every maximal part that is not UTF-8. Raises `SessionError` (bad_token)."""
        detokenizer = self.detokenizer()
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()

    def detokenizer(self) -> EngineDetokenizer:
        """A fresh streaming decoder."""
        return EngineDetokenizer(self._instance, self._model, self.info, self._desk)

    def grammar(self, tools: str) -> EngineGrammar:
        """Declared tools, compiled for one answer at a time.

        Raises `GrammarError` (grammar_*): for what is no list of tools; for a schema that cannot be held to,
        with the path of the keyword. `SessionError` (bad_utf8) for lone surrogates.
        """
        utf8 = utf8_of("tools", tools)
        with self._instance.borrowed(len(utf8)) as text:
            self._instance.write(text, utf8)
            source = (self._model, text, len(utf8))
            self._instance.check("tools", "sg_grammar_measure", *source, self._desk)
            block = self._instance.take(self._instance.word(self._desk))
            try:
                self._instance.check("tools", "sg_grammar_open", *source, *block, self._desk)
            except SaguaroError:
                self._instance.give(block)
                raise
        grammar = EngineGrammar(self._instance, self._instance.word(self._desk), self.info, self._desk)
        weakref.finalize(grammar, _give_back, weakref.ref(self._instance), block)
        return grammar

    def session(self, capacity_tokens: int, heads: Sequence[str] = ()) -> EngineSession:
        """A fresh cache in which these probe heads take part.

        Raises `UsageError` (bad_argument, unknown_head), `ContainerError` (cact_unsupported).
        """
        limit = self.info.max_seq_len
        if not 1 <= capacity_tokens <= limit:
            message = refusal("session", "capacity_tokens", found=capacity_tokens, allowed=f"1 to {limit}")
            raise UsageError(message, code="bad_argument")
        instance, check = self._instance, functools.partial(self._instance.check, self.name)
        listeners = [(head, *self._measure_head(head)) for head in heads]
        asked = (self._model, capacity_tokens, NUMERICS.index(self.numerics))
        check("sg_session_measure", *asked, self._desk)
        session_bytes = instance.word(self._desk)
        block = instance.take(session_bytes + sum(size for _, _, size in listeners))
        try:
            check("sg_session_open", *asked, block[0], session_bytes, self._desk)
            address, free = instance.word(self._desk), block[0] + session_bytes
            for head, _, size in listeners:
                check("sg_session_listen", address, HEADS[head], free, size)
                free += size
        except SaguaroError:
            instance.give(block)
            raise
        outputs = {head: count for head, count, _ in listeners}
        session = EngineSession(instance, address, self.info, capacity_tokens, outputs, self._desk)
        weakref.finalize(session, _give_back, weakref.ref(instance), block)
        return session

    def _measure_head(self, head: str) -> tuple[int, int]:
        """Outputs of a head, and the bytes that listening for it takes."""
        if head not in self.info.heads:
            known = ", ".join(self.info.heads) or "none"
            raise UsageError(f"{self.name}: has no {head!r} head; heads: {known}", code="unknown_head")
        self._instance.check(
            self.name, "sg_head_measure", self._model, HEADS[head], self._desk, self._desk + _WORD_BYTES
        )
        return self._instance.word(self._desk), self._instance.word(self._desk + _WORD_BYTES)

    def _describe(self) -> ModelInfo:
        self._instance.call("sg_model_describe", self._model, self._desk)
        words = _INFO.unpack(self._instance.read(self._desk, _INFO.size))
        markers = (None if word == _NO_PIECE else word for word in words[11:17])
        heads = tuple(head for head, code in HEADS.items() if words[17] >> code & 1)
        return replace(ModelInfo(*words[:11], *markers), heads=heads)


def _give_back(instance: weakref.ref[Instance], block: tuple[int, int]) -> None:
    """Free a dropped session's memory; the finalizer must not keep the instance alive until Python ends."""
    if alive := instance():
        alive.give(block)


class EngineSession:
    """One KV cache; implements `builder.runtime.interface.Session`. Dropped, its memory is reused."""

    def __init__(
        self,
        instance: Instance,
        session: int,
        info: ModelInfo,
        capacity_tokens: int,
        head_outputs: dict[str, int],
        desk: int,
    ) -> None:
        self._instance, self._session, self._info, self._desk = instance, session, info, desk
        self._capacity_tokens, self._head_outputs = capacity_tokens, head_outputs

    @property
    def position(self) -> int:
        """Number of tokens that the cache holds."""
        return self._instance.call("sg_session_position", self._session)

    @property
    def cache_bytes(self) -> int:
        """Bytes that keys and values take of the instance's memory."""
        return self._instance.call("sg_session_cache_bytes", self._session)

    def append(self, ids: Sequence[int]) -> None:
        """Add tokens, all or none. Raises `SessionError` (context_full, bad_token)."""
        self._with_ids("sg_session_append", ids)

    def logits(self) -> NDArray[np.float32]:
        """A copy, (logit_count,) f32. Raises `SessionError` (bad_state) before the first append."""
        self._check("sg_session_logits", self._desk)
        return self._floats(self._info.logit_count)

    def head(self, name: str) -> NDArray[np.float32]:
        """A copy, (outputs,) f32. Raises `SessionError` (bad_state) before the first append and for a head
        that the session was not opened with.
        """
        if name not in self._head_outputs:
            sentence = f"session: was not opened with the head {name!r}; name it in heads"
            raise SessionError(sentence, code="bad_state")
        self._check("sg_session_head", HEADS[name], self._desk)
        return self._floats(self._head_outputs[name])

    def score(self, ids: Sequence[int]) -> float:
        """Sum of ln p(id | all before). Raises `SessionError` (bad_state, context_full, bad_token)."""
        self._with_ids("sg_session_score", ids, self._desk)
        return float(struct.unpack("<d", self._instance.read(self._desk, 8))[0])

    def sample(self, sampling: Sampling, grammar: Grammar | None = None, room_tokens: int = 0) -> int:
        """Draw the next id; moves `random_state`. Raises `UsageError`, `SessionError` (bad_state).

        With a grammar, which is one of the same model's: among the ids that it allows.
        """
        fields = (sampling.temperature, sampling.top_p, sampling.top_k, 0, sampling.random_state)
        self._instance.write(self._desk, _SAMPLING.pack(*fields))
        out = self._desk + _SAMPLING.size
        if grammar is None:
            self._check("sg_session_sample", self._desk, out)
        else:
            address = cast(EngineGrammar, grammar).address
            self._check("sg_session_sample_allowed", address, room_tokens, self._desk, out)
        *_, sampling.random_state = _SAMPLING.unpack(self._instance.read(self._desk, _SAMPLING.size))
        return self._instance.word(out)

    def pin(self, token_count: int) -> None:
        """Keep the first tokens visible behind the KV window of generation 2; call it before appending them.

        Raises `UsageError` (bad_argument) for a negative number and beyond the capacity.
        """
        limit = self._capacity_tokens
        if not 0 <= token_count <= limit:
            message = refusal("session", "token_count", found=token_count, allowed=f"0 to {limit}")
            raise UsageError(message, code="bad_argument")
        self._check("sg_session_pin", token_count)

    def mark(self) -> None:
        """Remember the present state."""
        self._check("sg_session_mark")

    def rewind(self) -> None:
        """Return to the mark. Raises `SessionError` (bad_state) without one."""
        self._check("sg_session_rewind")

    def reset(self) -> None:
        """A fresh cache, without a mark."""
        self._instance.call("sg_session_reset", self._session)

    def _floats(self, count: int) -> NDArray[np.float32]:
        """A copy of the floats whose address stands on the desk."""
        address = self._instance.word(self._desk)
        return np.frombuffer(self._instance.read(address, 4 * count), "<f4").copy()

    def _check(self, name: str, *arguments: int) -> None:
        self._instance.check("session", name, self._session, *arguments)

    def _with_ids(self, name: str, ids: Sequence[int], *rest: int) -> None:
        _require_words("session", ids, self._info)
        data = np.asarray(ids, "<u4").tobytes()
        with self._instance.borrowed(len(data)) as block:
            self._instance.write(block, data)
            self._check(name, block, len(ids), *rest)


class EngineGrammar:
    """Where one answer stands in the grammar of its tools; implements `builder.runtime.interface.Grammar`."""

    def __init__(self, instance: Instance, grammar: int, info: ModelInfo, desk: int) -> None:
        self._instance, self.address, self._info, self._desk = instance, grammar, info, desk

    def reset(self) -> None:
        """Back to the start of an answer."""
        self._instance.call("sg_grammar_reset", self.address)

    def accept(self, token_id: int) -> None:
        """Move on by an id that the answer keeps. Raises `SessionError` (bad_token) if it does not fit."""
        _require_words("grammar", (token_id,), self._info)
        self._instance.check("grammar", "sg_grammar_accept", self.address, token_id)

    def takes(self, token_id: int, room_tokens: int) -> bool:
        """Whether this id may come next."""
        return bool(self.allowed(room_tokens)[token_id])

    def allowed(self, room_tokens: int) -> NDArray[np.bool_]:
        """Which ids may come next, (logit_count,), if the answer keeps at most `room_tokens` more."""
        self._instance.call("sg_grammar_allowed", self.address, room_tokens, self._desk)
        logit_count = self._info.logit_count
        words = self._instance.read(self._instance.word(self._desk), -(-logit_count // 32) * _WORD_BYTES)
        bits = np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little")
        return bits[:logit_count].astype(np.bool_)


def _require_words(subject: str, ids: Sequence[int], info: ModelInfo) -> None:
    """Refuse what is no u32; whether a u32 is an id is the engine's to say."""
    bad = next((i for i in ids if not 0 <= i <= WORD_MAX), None)
    if bad is not None:
        message = refusal(subject, "token id", found=bad, allowed=f"0 to {info.vocab_count - 1}")
        raise SessionError(message, code="bad_token")


class EngineDetokenizer:
    """Streaming decode; its state lies in Python, so that any number can be alive."""

    def __init__(self, instance: Instance, model: int, info: ModelInfo, desk: int) -> None:
        self._instance, self._model, self._info, self._desk = instance, model, info, desk
        self._state = bytes(_DETOKENIZER_BYTES)

    def push(self, token_id: int) -> str:
        """Text that has become certain with this id. Raises `SessionError` (bad_token)."""
        _require_words("text", (token_id,), self._info)
        state, size, text = self._prepare()
        place = (text, _PIECE_BYTES_MAX, size)
        self._instance.check("text", "sg_detokenize", self._model, state, token_id, *place)
        return self._finish(state, size, text)

    def flush(self) -> str:
        """The rest, with U+FFFD for bytes that never became a character."""
        state, size, text = self._prepare()
        self._instance.call("sg_detokenize_flush", state, text, _PIECE_BYTES_MAX, size)
        return self._finish(state, size, text)

    def _prepare(self) -> tuple[int, int, int]:
        self._instance.write(self._desk, self._state)
        return self._desk, self._desk + _DETOKENIZER_BYTES, self._desk + _PIECE_OFFSET

    def _finish(self, state: int, size: int, text: int) -> str:
        self._state = self._instance.read(state, _DETOKENIZER_BYTES)
        return self._instance.read(text, self._instance.word(size)).decode("utf-8")
