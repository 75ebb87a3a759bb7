"""The embedded tokenizer: its blob and its pieces.

Owns: rule 10 of docs/formats/cact.md. Does not know: how text is split (the engine and the reference do).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

from builder.cact.rules import broken
from builder.errors import ContainerError

BLOB_HEADER = struct.Struct("<5IBBH")
"""piece_count, pad, eos, bos, unk, add_dummy_prefix, byte_fallback, zero."""
PIECE = struct.Struct("<fBH")
"""score, type, length of the UTF-8 text that follows."""
ID_FIELDS = ("pad_id", "eos_id", "bos_id", "unk_id")


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 0
    UNKNOWN = 1
    CONTROL = 2
    USER_DEFINED = 3
    BYTE = 4


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class Tokenizer:
    """A SentencePiece BPE vocabulary as the container stores it."""

    pieces: tuple[Piece, ...]
    pad_id: int
    eos_id: int
    bos_id: int
    unk_id: int
    add_dummy_prefix: bool
    byte_fallback: bool


def parse_tokenizer(
    blob: bytes | memoryview, *, vocab_count: int | None = None, subject: str = "tokenizer", offset: int = 0
) -> Tokenizer:
    """The tokenizer in a blob that stands at `offset` of `subject`; `vocab_count` bounds its pieces.

    Raises `ContainerError` (cact_bad_tokenizer).
    """
    data = bytes(blob)
    if len(data) < BLOB_HEADER.size:
        raise _bad(subject, "header", f"{len(data)} bytes", f"{BLOB_HEADER.size} bytes", offset)
    count, *ids, dummy, fallback, reserved = BLOB_HEADER.unpack_from(data)
    # A piece takes at least eight bytes, so the count is bounded before anything grows.
    most = (len(data) - BLOB_HEADER.size) // (PIECE.size + 1)
    if vocab_count is not None:
        most = min(most, vocab_count)
    if not 1 <= count <= most:
        raise _bad(subject, "piece_count", count, f"1 to {most}, what blob and vocabulary can hold", offset)
    for i, (name, value) in enumerate(zip(ID_FIELDS, ids, strict=True)):
        if value >= count:
            raise _bad(subject, name, value, f"below piece_count ({count})", offset + 4 + 4 * i)
    if dummy > 1 or fallback > 1 or reserved:
        raise _bad(subject, "flags", [dummy, fallback, reserved], "0 or 1, 0 or 1, 0", offset + 20)
    pieces = _pieces(data, count, subject, offset)
    _check_pieces(pieces, bool(fallback), subject, offset)
    pad_id, eos_id, bos_id, unk_id = ids
    return Tokenizer(pieces, pad_id, eos_id, bos_id, unk_id, bool(dummy), bool(fallback))


def pack_tokenizer(tokenizer: Tokenizer) -> bytes:
    """The blob of a tokenizer; the inverse of `parse_tokenizer`."""
    ids = (tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id, tokenizer.unk_id)
    flags = (tokenizer.add_dummy_prefix, tokenizer.byte_fallback)
    blob = bytearray(BLOB_HEADER.pack(len(tokenizer.pieces), *ids, *flags, 0))
    for piece in tokenizer.pieces:
        text = piece.text.encode()
        blob += PIECE.pack(piece.score, piece.type, len(text)) + text
    return bytes(blob)


def _pieces(data: bytes, count: int, subject: str, offset: int) -> tuple[Piece, ...]:
    pieces = []
    at = BLOB_HEADER.size
    for index in range(count):
        if len(data) - at < PIECE.size:
            raise _bad(subject, f"piece {index}", "cut off", "complete", offset + at)
        score, kind, size = PIECE.unpack_from(data, at)
        text_at = at + PIECE.size
        if not math.isfinite(score):
            raise _bad(subject, f"piece {index} score", score, "finite", offset + at)
        if kind > max(PieceType):
            raise _bad(subject, f"piece {index} type", kind, "0 to 4", offset + at + 4)
        if not 1 <= size <= len(data) - text_at:
            raise _bad(subject, f"piece {index} length", size, "1 up to what is left", offset + at + 5)
        try:
            text = data[text_at : text_at + size].decode("utf-8")
        except UnicodeDecodeError:
            raise _bad(subject, f"piece {index} text", "not UTF-8", "UTF-8", offset + text_at) from None
        pieces.append(Piece(text, score, PieceType(kind)))
        at = text_at + size
    if at != len(data):
        raise _bad(subject, "length", f"{len(data)} bytes", f"{at}, where the last piece ends", offset + at)
    return tuple(pieces)


def _check_pieces(pieces: tuple[Piece, ...], byte_fallback: bool, subject: str, offset: int) -> None:
    seen: set[str] = set()
    for index, piece in enumerate(pieces):
        if piece.text in seen:
            raise _bad(subject, f"piece {index}", f"a second {piece.text!r}", "unique", offset)
        seen.add(piece.text)
    every_byte = {f"<0x{value:02X}>" for value in range(256)}
    byte_pieces = {piece.text for piece in pieces if piece.type is PieceType.BYTE}
    if not byte_pieces <= every_byte:
        raise _bad(subject, "byte piece", min(byte_pieces - every_byte), "spelt <0x00> to <0xFF>", offset)
    if byte_fallback and byte_pieces != every_byte:
        raise _bad(subject, "byte pieces", len(byte_pieces), "all 256, since byte_fallback is set", offset)


def _bad(subject: str, field: str, found: object, allowed: str, offset: int) -> ContainerError:
    name = f"tokenizer.{field}"
    return broken(10, "cact_bad_tokenizer", subject, name, found=found, allowed=allowed, offset=offset)
