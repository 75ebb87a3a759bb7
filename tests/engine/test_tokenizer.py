"""Text to ids as `sentencepiece` does it, ids to text as Python's decoder does it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needle.model.export import RefTokenizer, parse_tokenizer_blob

from builder.cact.reader import read_container
from builder.cact.tokenizer import parse_tokenizer
from builder.errors import SessionError
from tests.engine.tokenizers import LETTERS, MARKERS, oracle, tokenizer_of, tokenizers, with_tokenizer

SPELLINGS = [
    "<|im_end|>",
    "<|im_start|>",
    "<tool_call>",
    "</tools>",
    "<think>",
    "<s>",
    "<unk>",
    "<0x41>",
    "▁",
]
fragments = st.sampled_from([*SPELLINGS, " ", "  ", "\n", "\0", "é", "日本", "\U0001f4a1", "the light"])
texts = st.lists(st.text(max_size=8) | fragments, max_size=8).map("".join)
letters = st.lists(st.text(LETTERS + " <>") | st.sampled_from(MARKERS), max_size=10).map("".join)


@pytest.fixture(scope="module")
def container(random_files):
    return read_container(random_files["everything"])


@pytest.fixture(scope="module")
def model(engine, random_files):
    return engine.open(random_files["everything"].read_bytes())


@pytest.fixture(scope="module")
def processor(container):
    return oracle(parse_tokenizer(container.tokenizer_blob))


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(texts)
def test_text_is_split_as_sentencepiece_splits_it(model, processor, text):
    assert model.encode(text) == list(processor.encode(text))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(tokenizers(), st.lists(letters, min_size=1, max_size=8))
def test_any_vocabulary_splits_text_as_sentencepiece_splits_it(engine, container, tokenizer, some):
    model, processor = engine.open(with_tokenizer(container, tokenizer)), oracle(tokenizer)
    for text in some:
        assert model.encode(text) == list(processor.encode(text)), text


NESTED = ("<", "<a", "<ab", "<abcd", "<ac", "b<", "b<ab")


@pytest.mark.parametrize(
    ("tokenizer", "text", "pieces"),
    [
        (tokenizer_of({"a": 0, "aa": -1}), "aaaaa", ["aa", "aa", "a"]),
        (tokenizer_of({"a": 0, "b": 0, "ab": -1, "ba": -1}), "babab", ["ba", "ba", "b"]),
        (tokenizer_of({"a": 0, "aa": -2, "ab": -1, "b": 0}), "aab", ["a", "ab"]),
        (tokenizer_of({"a": 0, "b": 0}, NESTED), "<abc<ab<abcd<acb<abd", None),
        (tokenizer_of({"a": 0, "b": 0}, NESTED), "<aab<ad<b<<abcb<", None),
        (tokenizer_of({"▁": 0, "▁a": -1, "a": 0}, ("<",), dummy=True), "<a a  a", None),
        (tokenizer_of({"a": 0}), " a é", None),
    ],
)
def test_ties_and_markers_within_markers_go_as_in_sentencepiece(engine, container, tokenizer, text, pieces):
    found = engine.open(with_tokenizer(container, tokenizer)).encode(text)
    assert found == list(oracle(tokenizer).encode(text))
    if pieces:
        assert [tokenizer.pieces[token_id].text for token_id in found] == pieces


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(tokenizers(), st.lists(st.lists(st.integers(0, 290), max_size=12), min_size=1, max_size=8))
def test_any_ids_are_joined_as_upstream_joins_them(engine, container, tokenizer, some):
    data = with_tokenizer(container, tokenizer)
    model = engine.open(data)
    upstream = RefTokenizer(parse_tokenizer_blob(read_container(data).tokenizer_blob))
    for ids in some:
        known = [token_id for token_id in ids if token_id < len(tokenizer.pieces)]
        assert model.decode(known) == upstream.decode(known)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=24))
def test_bytes_that_are_no_character_become_replacements_as_in_python(model, processor, data):
    ids = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in data]
    assert model.decode(ids) == data.decode("utf-8", "replace").replace("▁", " ")


@settings(deadline=None, max_examples=60)
@given(texts)
def test_a_stream_gives_the_same_text_and_never_half_a_character(model, text):
    detokenizer = model.detokenizer()
    pushed = [detokenizer.push(token_id) for token_id in model.encode(text)]
    assert "".join(pushed) + detokenizer.flush() == text.replace("▁", " ")


def test_streams_do_not_disturb_each_other(model):
    first, second = model.detokenizer(), model.detokenizer()
    light, sun = model.encode("\U0001f4a1"), model.encode("\U0001f31e")
    pushed = [(first.push(a), second.push(b)) for a, b in zip(light, sun, strict=True)]
    assert "".join(a for a, _ in pushed) == "\U0001f4a1"
    assert "".join(b for _, b in pushed) == "\U0001f31e"


def test_a_long_text_without_spaces_takes_no_quadratic_time(model, processor):
    text = "abcab" * 20_000
    assert model.encode(text) == list(processor.encode(text))


def test_a_lone_surrogate_and_an_unknown_id_are_refused(model):
    with pytest.raises(SessionError, match="lone surrogate at 1") as text_error:
        model.encode("a\ud800")
    assert text_error.value.code == "bad_utf8"
    for token_id in (-1, 1024, 2**40):
        with pytest.raises(SessionError) as id_error:
            model.decode([token_id])
        assert id_error.value.code == "bad_token"
