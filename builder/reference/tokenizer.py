"""The reference's way from text to ids and back.

Owns: encoding through the `sentencepiece` library (an oracle that Saguaro did not write), and decoding piece
by piece with held-back UTF-8. Source of the rules: docs/formats/cact.md, "Tokenizer"; `RefTokenizer` in
`needle/model/export.py`.
Does not know: prompts, BOS, models.
"""

from __future__ import annotations

import codecs

import sentencepiece

from builder.cact.sentencepiece_model import write_sentencepiece
from builder.cact.tokenizer import PieceType, parse_tokenizer
from builder.errors import utf8_of

SPACE_MARK = "\u2581"


class ReferenceTokenizer:
    """The tokenizer of a container. Raises `ContainerError` (cact_bad_tokenizer) for a bad blob."""

    def __init__(self, blob: bytes) -> None:
        self.table = parse_tokenizer(blob)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=write_sentencepiece(self.table))
        self._ids = {piece.text: token_id for token_id, piece in enumerate(self.table.pieces)}

    def piece_id(self, text: str) -> int | None:
        """The id of a piece by its spelling, or None."""
        return self._ids.get(text)

    def encode(self, text: str) -> list[int]:
        """Token ids, without BOS. Raises `SessionError` (bad_utf8) for lone surrogates."""
        return list(self._processor.encode(utf8_of("text", text), out_type=int))

    def piece_bytes(self, token_id: int) -> bytes:
        """What the id adds to the text: nothing for control and unknown pieces and ids without a piece."""
        if not 0 <= token_id < len(self.table.pieces):
            return b""
        piece = self.table.pieces[token_id]
        if piece.type is PieceType.BYTE:
            return bytes([int(piece.text[3:5], 16)])
        if piece.type in (PieceType.CONTROL, PieceType.UNKNOWN):
            return b""
        return piece.text.encode("utf-8")


class ReferenceDetokenizer:
    """Streaming decode; see `builder.runtime.interface.Detokenizer`."""

    def __init__(self, tokenizer: ReferenceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = tokenizer.table.add_dummy_prefix

    def push(self, token_id: int) -> str:
        """Text that has become certain with this id; may be empty."""
        return self._spaced(self._decoder.decode(self._tokenizer.piece_bytes(token_id)))

    def flush(self) -> str:
        """The rest, with U+FFFD for bytes that never became a character."""
        return self._spaced(self._decoder.decode(b"", final=True))

    def _spaced(self, text: str) -> str:
        text = text.replace(SPACE_MARK, " ")
        if text and self._drop_space:
            self._drop_space = False
            text = text.removeprefix(" ")
        return text
