"""Writing: what was read comes out byte for byte, and nothing that no reader takes is ever written."""

from __future__ import annotations

import dataclasses
import hashlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.cact import layout
from builder.cact.header import Header
from builder.cact.order import model_slots
from builder.cact.reader import read_container
from builder.cact.writer import Blob, blobs_of, cq_blob, half_blob, raw_blob, write_container
from builder.errors import ContainerError
from tests.cact.samples import (
    GOLDEN,
    PUBLISHED_82_HEADER,
    TINY_83_HEADER,
    TINY_HEADER,
    golden_files,
    random_blob,
    random_container,
    tiny_tokenizer,
    upstream_tiny,
)


def rewritten(data: bytes) -> bytes:
    container = read_container(data)
    return write_container(container.header, blobs_of(container), container.codebooks)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.cact")), ids=lambda path: path.stem)
def test_a_golden_file_comes_out_as_it_went_in(path):
    assert rewritten(path.read_bytes()) == path.read_bytes()


def test_every_file_of_the_demo_comes_out_as_it_went_in(demo_family):
    for path in sorted(demo_family.folder.glob("*.cact")):
        assert rewritten(path.read_bytes()) == path.read_bytes()


@pytest.mark.slow
def test_the_published_generation_two_geometry_comes_out_as_it_went_in():
    data = random_container(PUBLISHED_82_HEADER, bits=lambda name: 1)
    assert len(data) > 6_000_000
    assert rewritten(data) == data


def test_a_file_comes_out_even_with_codebooks_of_its_own():
    container = read_container(GOLDEN / "tiny84.cact")
    books = container.codebooks * np.float32(1.5)
    data = write_container(container.header, blobs_of(container), books)
    assert read_container(data).codebooks.tobytes() == books.tobytes()
    assert rewritten(data) == data


def test_our_golden_files_are_made_again_bit_for_bit():
    for name, make in golden_files().items():
        assert (GOLDEN / name).read_bytes() == make() == make()


@pytest.mark.slow
def test_upstreams_golden_file_is_what_upstream_writes_today(tmp_path):
    # On other processors upstream's BLAS may move a code that lies on a boundary; sizes and places stay.
    ours, theirs = read_container(GOLDEN / "tiny84.cact"), read_container(upstream_tiny(tmp_path / "t.cact"))
    assert ours.records == theirs.records
    assert ours.header == theirs.header


def test_golden_hashes_are_those_in_the_readme():
    text = (GOLDEN / "README.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| `(\w+\.cact)` \| ([0-9a-f]{64}) \|", text, re.MULTILINE))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in GOLDEN.glob("*.cact")}
    assert listed == found


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """Small geometries of tags 83 and 84 within the rules."""
    d_model = draw(st.integers(1, 20))
    kv_heads = draw(st.integers(1, 2))
    layers = draw(st.integers(1, 3))
    orders = tuple(draw(st.lists(st.integers(1, 16), min_size=1, max_size=4)))
    sites = tuple(sorted(draw(st.sets(st.integers(0, layers - 1)))))
    qk = 2 * draw(st.integers(1, 3))
    header = dataclasses.replace(
        TINY_HEADER,
        **{"d_model": d_model, "hada_n": 1 << (d_model - 1).bit_length(), "kv_head_count": kv_heads},
        **{"head_count": kv_heads * draw(st.integers(1, 2)), "layer_count": layers, "orders": orders},
        **{"sites": sites, "engram_table_count": len(orders) * draw(st.integers(1, 2)), "qk_head_dim": qk},
        vocab_count=draw(st.integers(22, 40)),
        v_head_dim=draw(st.integers(1, 5)),
        global_mask=draw(st.integers(0, 2**64 - 1)),
        qkv_conv_taps=draw(st.integers(0, 2)),
        lane_count=draw(st.integers(1, 3)),
        kv_window=draw(st.integers(0, 2**32 - 1)),
    )
    if draw(st.booleans()):
        gen_2 = {"sliding_window": 0, "global_mask": 0, "qkv_conv_taps": 0, "out_vocab_count": 0}
        header = dataclasses.replace(header, tag=layout.TAG_83, v_head_dim=qk, **gen_2)
    return header


@given(headers(), st.data())
@settings(deadline=None, max_examples=25)
def test_any_geometry_survives_writing_and_reading(header, data):
    widths = {slot.name: data.draw(st.sampled_from(layout.CQ_BITS)) for slot in list(model_slots(header))[:3]}
    heads = (2,) if data.draw(st.booleans()) else ()
    tokenizer = tiny_tokenizer() if data.draw(st.booleans()) else None
    written = random_container(
        header, bits=lambda name: widths.get(name, 4), heads=heads, tokenizer=tokenizer
    )
    container = read_container(written)
    assert dataclasses.replace(container.header, tensor_count=0) == header
    assert rewritten(written) == written


class TestRefusals:
    @pytest.fixture
    def blobs(self) -> list[Blob]:
        rng = np.random.default_rng(0)
        return [random_blob(rng, slot, 4) for slot in model_slots(TINY_HEADER)]

    def refused(self, header: Header, blobs: list[Blob], sentence: str) -> str:
        with pytest.raises(ContainerError, match=sentence) as caught:
            write_container(header, blobs)
        return caught.value.code

    def test_a_missing_tensor(self, blobs):
        assert self.refused(TINY_HEADER, blobs[:-1], "final_norm is missing") == "cact_bad_header"

    def test_two_tensors_in_the_wrong_order(self, blobs):
        blobs[1], blobs[2] = blobs[2], blobs[1]
        assert self.refused(TINY_HEADER, blobs, r"record 1 \(layers.0.norm_in\)") == "cact_bad_record"

    def test_a_number_that_fp16_cannot_hold(self, blobs):
        blobs[-1] = half_blob(np.full(8, 65520.0))
        assert self.refused(TINY_HEADER, blobs, "final_norm at byte .* infinite") == "cact_bad_value"

    def test_a_norm_that_fp16_cannot_hold(self, blobs):
        codes, norms = np.zeros((24, 128), np.uint8), np.full((24, 1), np.inf, np.float16)
        blobs[0] = cq_blob(codes, norms, 4, 8)
        assert self.refused(TINY_HEADER, blobs, "embedding norm at byte") == "cact_bad_value"

    def test_a_tokenizer_larger_than_the_vocabulary(self, blobs):
        header = dataclasses.replace(TINY_HEADER, vocab_count=11, out_vocab_count=0)
        rng = np.random.default_rng(0)
        blobs = [random_blob(rng, slot, 4) for slot in model_slots(header)] + [raw_blob(tiny_tokenizer())]
        assert self.refused(header, blobs, "tokenizer.piece_count") == "cact_bad_tokenizer"

    def test_a_geometry_that_tag_82_cannot_say(self):
        header = dataclasses.replace(TINY_83_HEADER, tag=layout.TAG_82)
        assert self.refused(header, [], "since tag 0x05e12a82 fixes the geometry") == "cact_bad_header"
