"""The tokenizer: container blob and SentencePiece model, against upstream and sentencepiece itself."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from needle.model.export import _tokenizer_blob, parse_tokenizer_blob
from needle.model.tokenizer import SANTokenizer

from builder.cact import protobuf_wire as wire
from builder.cact import sentencepiece_model
from builder.cact.sentencepiece_model import parse_sentencepiece, read_sentencepiece, write_sentencepiece
from builder.cact.tokenizer import Piece, PieceType, Tokenizer, pack_tokenizer, parse_tokenizer
from builder.errors import ContainerError, RefusedError
from tests.cact.samples import tiny_tokenizer

MODEL = Path(__file__).parents[2] / "examples" / "demo" / "tokenizer.model"
SENTENCES = ["turn on the light", "set a timer for five minutes", "what is the weather", "ab ba abba"] * 20


def train(**options: object) -> bytes:
    """A model trained by sentencepiece itself."""
    writer = io.BytesIO()
    defaults = {
        "model_type": "bpe",
        "vocab_size": 300,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    trainer = sentencepiece.SentencePieceTrainer
    trainer.train(sentence_iterator=iter(SENTENCES), model_writer=writer, **(defaults | options))
    return writer.getvalue()


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return read_sentencepiece(MODEL)


def test_the_blob_is_upstreams(demo):
    assert pack_tokenizer(demo) == _tokenizer_blob(SANTokenizer(str(MODEL)))


def test_a_trained_model_with_a_dummy_prefix_gives_upstreams_blob(tmp_path):
    (tmp_path / "t.model").write_bytes(train(user_defined_symbols=["<think>"]))
    blob = pack_tokenizer(read_sentencepiece(tmp_path / "t.model"))
    assert blob == _tokenizer_blob(SANTokenizer(str(tmp_path / "t.model")))
    assert parse_tokenizer(blob).add_dummy_prefix


def test_a_blob_is_read_as_upstream_reads_it(demo):
    ours, theirs = parse_tokenizer(pack_tokenizer(demo)), parse_tokenizer_blob(pack_tokenizer(demo))
    assert [piece.text for piece in ours.pieces] == theirs["pieces"]
    assert [piece.score for piece in ours.pieces] == theirs["scores"]
    assert [int(piece.type) for piece in ours.pieces] == theirs["types"]
    for name in ("pad_id", "eos_id", "bos_id", "unk_id", "add_dummy_prefix", "byte_fallback"):
        assert getattr(ours, name) == theirs[name]


def test_blob_and_model_are_two_forms_of_one_tokenizer(demo):
    assert parse_tokenizer(pack_tokenizer(demo)) == demo
    assert parse_sentencepiece(write_sentencepiece(demo)) == demo
    assert pack_tokenizer(parse_tokenizer(tiny_tokenizer())) == tiny_tokenizer()


@pytest.fixture(scope="module")
def processors(demo) -> tuple[sentencepiece.SentencePieceProcessor, sentencepiece.SentencePieceProcessor]:
    return (
        sentencepiece.SentencePieceProcessor(model_file=str(MODEL)),
        sentencepiece.SentencePieceProcessor(model_proto=write_sentencepiece(demo)),
    )


@given(st.text(max_size=60))
@settings(deadline=None, max_examples=200)
def test_a_model_made_from_a_container_splits_text_as_the_original_does(processors, text):
    original, ours = processors
    assert ours.encode(text) == original.encode(text)
    assert ours.decode(original.encode(text)) == original.decode(original.encode(text))


def test_a_model_made_from_a_container_knows_its_markers(processors):
    original, ours = processors
    text = "<|im_start|>user\n<tools>[]</tools>\nturn  on \u2581 é 😀<|im_end|>"
    assert ours.encode(text) == original.encode(text)
    assert [ours.pad_id(), ours.eos_id(), ours.bos_id(), ours.unk_id()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model_type": "unigram", "vocab_size": 290}, "model_type: is 1, must be 2 (BPE)"),
        ({"normalization_rule_name": "nmt_nfkc"}, "bytes, must be empty (the identity normaliser)"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces: is 1, must be off"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix: is 1, must be off"),
        ({"pad_id": -1}, "pad_id: is -1, must be 0 to"),
    ],
)
def test_a_model_that_a_container_cannot_express_is_refused(options, sentence):
    model = train(**options)
    with pytest.raises(RefusedError) as caught:
        parse_sentencepiece(model, subject="t.model")
    assert caught.value.code == "bad_tokenizer_model"
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 200


def test_bytes_that_are_no_model_are_refused():
    model = MODEL.read_bytes()
    for data in (b"\x0a", b"\xff" * 30, model[:1000], b"hello world", b"\x0b\x00", b"\x08\x01\x0a\x03abc"):
        with pytest.raises(RefusedError) as caught:
            parse_sentencepiece(data)
        assert caught.value.code == "bad_tokenizer_model"


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_no_bytes_make_the_model_reader_fail_otherwise(data):
    with contextlib.suppress(RefusedError):
        parse_sentencepiece(data)


@pytest.mark.parametrize("size", [0, 65536])
def test_a_piece_that_a_container_cannot_hold_is_refused(size):
    piece = wire.bytes_field(sentencepiece_model.TEXT, b"x" * size)
    model = wire.bytes_field(sentencepiece_model.PIECES, piece)
    with pytest.raises(RefusedError, match=f"a piece has {size} bytes, must have 1 to 65535"):
        parse_sentencepiece(model)


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(RefusedError, match=r"gone\.model: cannot be read: no such file"):
        read_sentencepiece(tmp_path / "gone.model")


TINY = parse_tokenizer(tiny_tokenizer())
HEX_BYTES = tuple(Piece(f"<0x{value:02X}>", 0.0, PieceType.BYTE) for value in range(256))


def with_pieces(*pieces: Piece, **changes: object) -> bytes:
    return pack_tokenizer(dataclasses.replace(TINY, pieces=(*TINY.pieces, *pieces), **changes))


def broken(offset: int, data: bytes) -> bytes:
    blob = bytearray(tiny_tokenizer())
    blob[offset : offset + len(data)] = data
    return bytes(blob)


BAD_BLOBS = {
    "empty": b"",
    "header cut off": tiny_tokenizer()[:23],
    "no pieces": broken(0, b"\0\0\0\0"),
    "four thousand million pieces": broken(0, b"\xff\xff\xff\xff"),
    "one piece too many": broken(0, b"\x0d"),
    "one piece too few": broken(0, b"\x0b"),
    "pad beyond the pieces": broken(4, b"\x0c"),
    "unk beyond the pieces": broken(16, b"\xff\xff\xff\xff"),
    "dummy prefix of two": broken(20, b"\x02"),
    "byte fallback of two": broken(21, b"\x02"),
    "reserved word set": broken(22, b"\x01"),
    "score that is no number": broken(24, b"\0\0\xc0\x7f"),
    "infinite score": broken(24, b"\0\0\x80\x7f"),
    "unknown type": broken(28, b"\x05"),
    "empty piece": broken(29, b"\0\0"),
    "piece beyond the end": broken(29, b"\xff\xff"),
    "not utf-8": broken(31, b"\xff"),
    "last piece cut off": tiny_tokenizer()[:-1],
    "trailing byte": tiny_tokenizer() + b"\0",
    "same text twice": with_pieces(Piece("ab", 0.0, PieceType.NORMAL)),
    "byte piece in lower case": with_pieces(Piece("<0xab>", 0.0, PieceType.BYTE)),
    "byte fallback without byte pieces": with_pieces(byte_fallback=True),
    "byte fallback with 255 byte pieces": with_pieces(*HEX_BYTES[:-1], byte_fallback=True),
}


@pytest.mark.parametrize("name", BAD_BLOBS)
def test_a_bad_blob_is_refused(name):
    with pytest.raises(ContainerError) as caught:
        parse_tokenizer(BAD_BLOBS[name])
    assert caught.value.code == "cact_bad_tokenizer"
    assert "\n" not in str(caught.value)


def test_byte_fallback_with_all_byte_pieces_is_accepted():
    assert len(parse_tokenizer(with_pieces(*HEX_BYTES, byte_fallback=True)).pieces) == 268


def test_a_vocabulary_smaller_than_the_pieces_is_refused():
    assert parse_tokenizer(tiny_tokenizer(), vocab_count=12) == TINY
    with pytest.raises(ContainerError, match="is 12, must be 1 to 11"):
        parse_tokenizer(tiny_tokenizer(), vocab_count=11)
