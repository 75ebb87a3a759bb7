"""Small vocabularies for tests, and models that carry them."""

from __future__ import annotations

import sentencepiece
from hypothesis import strategies as st

from builder.cact.reader import Container
from builder.cact.sentencepiece_model import write_sentencepiece
from builder.cact.tokenizer import Piece, PieceType, Tokenizer, pack_tokenizer
from builder.cact.writer import blobs_of, raw_blob, write_container

LETTERS = "ab▁é"
"""Few, so that merges compete: ASCII, a space, and a character of two bytes."""
MARKERS = ("<a", "<ab>", "ab<", "é<", "b")

SPECIALS = (
    Piece("<pad>", 0.0, PieceType.CONTROL),
    Piece("</s>", 0.0, PieceType.CONTROL),
    Piece("<s>", 0.0, PieceType.CONTROL),
    Piece("<unk>", 0.0, PieceType.UNKNOWN),
)
BYTES = tuple(Piece(f"<0x{value:02X}>", 0.0, PieceType.BYTE) for value in range(256))


@st.composite
def tokenizers(draw: st.DrawFn) -> Tokenizer:
    """BPE vocabularies: competing merges, equal scores, overlapping markers, dummy prefix or not."""
    markers = draw(st.lists(st.sampled_from(MARKERS), unique=True, max_size=4))
    texts = st.text(LETTERS, min_size=1, max_size=4).filter(lambda text: text not in markers)
    normal = draw(st.lists(texts, unique=True, min_size=2, max_size=24))
    scores = draw(st.lists(st.integers(-6, 0), min_size=len(normal), max_size=len(normal)))
    scored = {text: float(score) for text, score in zip(normal, scores, strict=True)}
    return tokenizer_of(scored, tuple(markers), dummy=draw(st.booleans()))


def tokenizer_of(
    normal: dict[str, float], markers: tuple[str, ...] = (), *, dummy: bool = False
) -> Tokenizer:
    """A vocabulary with these pieces and scores."""
    pieces = (
        *SPECIALS,
        *(Piece(text, 0.0, PieceType.USER_DEFINED) for text in markers),
        *BYTES,
        *(Piece(text, score, PieceType.NORMAL) for text, score in normal.items()),
    )
    return Tokenizer(pieces, 0, 1, 2, 3, add_dummy_prefix=dummy, byte_fallback=True)


def oracle(tokenizer: Tokenizer) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=write_sentencepiece(tokenizer))


def with_tokenizer(container: Container, tokenizer: Tokenizer) -> bytes:
    """The same container with another tokenizer."""
    blobs = blobs_of(container)
    blobs[-1] = raw_blob(pack_tokenizer(tokenizer))
    return write_container(container.header, blobs)
