"""SentencePiece `.model` files to tokenizers and back.

Owns: the fields of ModelProto that a container can carry. Does not know: containers.
Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto

The file is read here rather than through `sentencepiece` or `protobuf`: publishing must need neither, the
wire format takes a page (protobuf_wire.py), and a setting that the container cannot carry must be refused.
"""

from __future__ import annotations

import struct
from pathlib import Path

from builder.cact import protobuf_wire as wire
from builder.cact.tokenizer import Piece, PieceType, Tokenizer
from builder.errors import RefusedError, plain_name, refusal
from builder.files import read_regular

PIECES, TRAINER, NORMALIZER = 1, 2, 3
TEXT, SCORE, TYPE = 1, 2, 3
MODEL_BYTES_MAX = 256 * 1024 * 1024
"""256 bytes for each of the 2^20 pieces that a container can have."""
PIECE_BYTES_MAX = 65535
"""A container counts them in 16 bits."""
BPE = 2
"""TrainerSpec.model_type of byte-pair encoding."""
TRAINER_FIELDS = {
    **{3: "model_type", 4: "vocab_size", 24: "treat_whitespace_as_suffix", 35: "byte_fallback"},
    **{40: "unk_id", 41: "bos_id", 42: "eos_id", 43: "pad_id"},
}
TRAINER_DEFAULTS: dict[str, int | bytes] = {
    **{"model_type": 1, "treat_whitespace_as_suffix": 0, "byte_fallback": 0},
    **{"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
}
NORMALIZER_FIELDS = {
    2: "precompiled_charsmap",
    3: "add_dummy_prefix",
    4: "remove_extra_whitespaces",
    5: "escape_whitespaces",
}
NORMALIZER_DEFAULTS: dict[str, int | bytes] = {
    "precompiled_charsmap": b"",
    "add_dummy_prefix": 1,
    "remove_extra_whitespaces": 1,
    "escape_whitespaces": 1,
}
TYPES = {
    1: PieceType.NORMAL,
    2: PieceType.UNKNOWN,
    3: PieceType.CONTROL,
    4: PieceType.USER_DEFINED,
    6: PieceType.BYTE,
}
"""SentencePiece.Type to ours; 5 (UNUSED) has no counterpart."""
REQUIRED = {
    "model_type": (BPE, "2 (BPE)"),
    "treat_whitespace_as_suffix": (0, "off"),
    "precompiled_charsmap": (b"", "empty (the identity normaliser)"),
    "remove_extra_whitespaces": (0, "off"),
    "escape_whitespaces": (1, "on"),
}
"""Settings that the container implies instead of storing."""


def read_sentencepiece(path: Path) -> Tokenizer:
    """The tokenizer of a `.model` file. Raises `RefusedError` (bad_tokenizer_model, as `read_regular`)."""
    return parse_sentencepiece(read_regular(path, MODEL_BYTES_MAX), subject=str(path))


def parse_sentencepiece(data: bytes, *, subject: str = "tokenizer model") -> Tokenizer:
    """The tokenizer of a serialised ModelProto. Raises `RefusedError` (bad_tokenizer_model)."""
    settings: dict[str, int | bytes] = {**TRAINER_DEFAULTS, **NORMALIZER_DEFAULTS}
    pieces: list[Piece] = []
    try:
        for number, value in wire.fields(data):
            if number == PIECES:
                pieces.append(_piece(value))
            elif number in (TRAINER, NORMALIZER):
                names = TRAINER_FIELDS if number == TRAINER else NORMALIZER_FIELDS
                settings |= {names[n]: v for n, v in wire.fields(_message(value)) if n in names}
    except (ValueError, struct.error) as error:
        text = f"{subject}: is not a SentencePiece BPE model: {error}"
        raise RefusedError(text, code="bad_tokenizer_model") from None
    for name, (wanted, allowed) in REQUIRED.items():
        found = settings[name]
        if found != wanted:
            said = f"{len(found)} bytes" if isinstance(found, bytes) else found
            raise _bad(subject, name, said, f"{allowed}, which is all that a .cact can say")
    return Tokenizer(
        pieces=tuple(pieces),
        pad_id=_id(settings, "pad_id", len(pieces), subject),
        eos_id=_id(settings, "eos_id", len(pieces), subject),
        bos_id=_id(settings, "bos_id", len(pieces), subject),
        unk_id=_id(settings, "unk_id", len(pieces), subject),
        add_dummy_prefix=bool(settings["add_dummy_prefix"]),
        byte_fallback=bool(settings["byte_fallback"]),
    )


def write_sentencepiece(tokenizer: Tokenizer) -> bytes:
    """A ModelProto that splits text as the container's tokenizer does."""
    numbers = {kind: number for number, kind in TYPES.items()}
    model = bytearray()
    for piece in tokenizer.pieces:
        message = wire.bytes_field(TEXT, piece.text.encode())
        message += wire.float_field(SCORE, piece.score)
        message += wire.varint_field(TYPE, numbers[piece.type])
        model += wire.bytes_field(PIECES, message)
    trainer = {
        "model_type": BPE,
        "vocab_size": len(tokenizer.pieces),
        "byte_fallback": int(tokenizer.byte_fallback),
        **{name: getattr(tokenizer, name) for name in ("unk_id", "bos_id", "eos_id", "pad_id")},
    }
    normalizer = {
        "add_dummy_prefix": int(tokenizer.add_dummy_prefix),
        "remove_extra_whitespaces": 0,
        "escape_whitespaces": 1,
    }
    model += wire.bytes_field(TRAINER, _settings_message(trainer, TRAINER_FIELDS))
    model += wire.bytes_field(NORMALIZER, _settings_message(normalizer, NORMALIZER_FIELDS))
    return bytes(model)


def _settings_message(values: dict[str, int], names: dict[int, str]) -> bytes:
    return b"".join(
        wire.varint_field(number, values[name]) for number, name in names.items() if name in values
    )


def _message(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where a message should be")
    return value


def _piece(value: int | bytes) -> Piece:
    text, score, kind = b"", 0.0, 1
    for number, field in wire.fields(_message(value)):
        if number == TEXT:
            text = _message(field)
        elif number == SCORE:
            (score,) = struct.unpack("<f", _message(field))
        elif number == TYPE and isinstance(field, int):
            kind = field
    if kind not in TYPES:
        raise ValueError(f"piece {plain_name(repr(text))} has type {kind}, which a .cact cannot say")
    if not 1 <= len(text) <= PIECE_BYTES_MAX:
        raise ValueError(f"a piece has {len(text)} bytes, must have 1 to {PIECE_BYTES_MAX}")
    return Piece(text.decode("utf-8"), score, TYPES[kind])


def _id(settings: dict[str, int | bytes], name: str, piece_count: int, subject: str) -> int:
    value = settings[name]
    if not (isinstance(value, int) and 0 <= value < piece_count):
        raise _bad(subject, name, value, f"0 to {piece_count - 1}")
    return value


def _bad(subject: str, field: str, found: object, allowed: str) -> RefusedError:
    return RefusedError(refusal(subject, field, found=found, allowed=allowed), code="bad_tokenizer_model")
