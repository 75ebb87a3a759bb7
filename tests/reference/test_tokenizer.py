from __future__ import annotations

import codecs

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from needle.model.export import RefTokenizer, parse_tokenizer_blob

from builder.errors import SessionError
from builder.reference.tokenizer import ReferenceDetokenizer, ReferenceTokenizer

markers = st.sampled_from(
    ["<|im_end|>", "<tool_call>", "</tools>", "<s>", "<0x41>", "▁", " ", "\n", "\0", "é", "日"]
)
texts = st.lists(st.text(max_size=8) | markers, max_size=8).map("".join)


@pytest.fixture(scope="module")
def tokenizer(random_container):
    return ReferenceTokenizer(random_container.tokenizer_blob)


@pytest.fixture(scope="module")
def upstream(random_container):
    return RefTokenizer(parse_tokenizer_blob(random_container.tokenizer_blob))


def decode(tokenizer, ids):
    detokenizer = ReferenceDetokenizer(tokenizer)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


@settings(deadline=None, max_examples=150)
@given(texts)
def test_text_is_split_as_upstream_splits_it(tokenizer, upstream, text):
    assert tokenizer.encode(text) == upstream.encode(text)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 1023), max_size=20))
@example([0, 1, 2, 3, 4, 5])
def test_any_ids_are_joined_as_upstream_joins_them(tokenizer, upstream, ids):
    assert decode(tokenizer, ids) == upstream.decode(ids)


def test_half_a_character_is_held_back_until_it_is_whole(tokenizer):
    detokenizer = ReferenceDetokenizer(tokenizer)
    pieces = [detokenizer.push(token_id) for token_id in tokenizer.encode("\U0001f4a1!")]
    assert pieces == ["", "", "", "\U0001f4a1", "!"]
    assert detokenizer.flush() == ""


def test_a_character_that_never_ends_becomes_a_replacement(tokenizer):
    ids = tokenizer.encode("\U0001f4a1")[:3]
    assert decode(tokenizer, ids) == codecs.decode(b"\xf0\x9f\x92", "utf-8", "replace") == "\ufffd"


def test_ids_beyond_the_pieces_have_no_text(tokenizer):
    assert decode(tokenizer, [5000, *tokenizer.encode("a"), 5000]) == "a"


def test_a_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(SessionError, match="lone surrogate at 1") as caught:
        tokenizer.encode("a\ud800")
    assert caught.value.code == "bad_utf8"


def test_pieces_are_found_by_their_spelling(tokenizer):
    assert tokenizer.piece_id("<|im_end|>") == 5
    assert tokenizer.piece_id("no such piece") is None
