"""Reading: names, shapes, codes and weights, against upstream's own reader and needle-rs."""

from __future__ import annotations

import needle_rs
import numpy as np
import pytest
from needle.model.export import read_export

from builder.cact import layout
from builder.cact.layout import Kind
from builder.cact.reader import Container, read_container
from builder.errors import ContainerError, UsageError
from tests.cact.samples import (
    GOLDEN,
    PUBLISHED_82_HEADER,
    TINY_HEADER,
    every_width,
    published_width,
    random_container,
    tiny_tokenizer,
)

UPSTREAM_NAMES = {
    "vocab_size": "vocab_count",
    "out_vocab": "out_vocab_count",
    "num_heads": "head_count",
    "num_kv_heads": "kv_head_count",
    "num_layers": "layer_count",
    "mhc_lanes": "lane_count",
    "num_engram_tables": "engram_table_count",
    "engram_conv_dilation": "engram_dilation",
    "engram_orders": "orders",
    "engram_layers": "sites",
    "num_tensors": "tensor_count",
}


def assert_equals_upstreams_reading(path) -> Container:
    """Header, codebooks and every tensor, bit for bit."""
    container = read_container(path)
    header, tensors = read_export(path)
    assert header.pop("codebook").tobytes() == container.codebooks.tobytes()
    for name, value in header.items():
        assert getattr(container.header, UPSTREAM_NAMES.get(name, name)) == value, name
    for record, theirs in zip(container.records, tensors, strict=True):
        if record.kind is Kind.RAW:
            assert container.tokenizer_blob == theirs
        else:
            ours = container.tensor(record.name)
            assert ours.shape == theirs.shape
            assert ours.tobytes() == np.ascontiguousarray(theirs).tobytes(), record.name
    return container


@pytest.mark.parametrize("member", ["base", "home"])
def test_every_tensor_of_the_demo_equals_upstreams_reading(demo_family, member):
    assert_equals_upstreams_reading(demo_family.folder / f"{member}.cact")


def test_a_file_that_upstream_wrote_equals_upstreams_reading():
    container = assert_equals_upstreams_reading(GOLDEN / "tiny84.cact")
    assert container.head_names == ("embedding", "confidence", "router")


def test_every_width_equals_upstreams_reading():
    container = assert_equals_upstreams_reading(GOLDEN / "tiny84_widths.cact")
    assert {record.bits for record in container.records} == {0, 1, 2, 3, 4, 5}


def test_the_published_map_of_widths_equals_upstreams_reading(tmp_path):
    data = random_container(bits=published_width, heads=(2,), tokenizer=tiny_tokenizer())
    (tmp_path / "mixed.cact").write_bytes(data)
    assert_equals_upstreams_reading(tmp_path / "mixed.cact")


def test_needle_rs_reads_what_we_read(tmp_path):
    no_binary = lambda name: max(2, every_width(name))  # noqa: E731 (needle-rs knows no 1-bit tensors)
    for bits in (published_width, no_binary):
        data = random_container(bits=bits, heads=(2,), tokenizer=tiny_tokenizer())
        engine = needle_rs.V3Engine.from_bytes(data)
        assert (engine.num_layers, engine.max_seq_len, engine.has_confidence()) == (2, 64, True)


def test_names_tell_the_place():
    container = read_container(GOLDEN / "tiny84.cact")
    names = [record.name for record in container.records]
    assert names[:3] == ["embedding", "layers.0.norm_in", "layers.0.q_proj"]
    assert names[28] == "layers.1.norm_in"
    assert names[-2:] == ["heads.router.calibration", "tokenizer"]
    assert len(set(names)) == len(names)
    assert container.record("engrams.0.key_proj").shape == (8, 8)
    assert "layers.1.out_proj" in container
    assert "layers.2.out_proj" not in container


def test_generation_two_has_fourteen_tensors_a_layer():
    container = read_container(GOLDEN / "tiny83.cact")
    assert container.header.generation == 2
    layer = [r.name.removeprefix("layers.1.") for r in container.records if r.name.startswith("layers.1.")]
    attention = "norm_in q_proj k_proj v_proj q_norm k_norm gate_proj out_proj post_attn_norm attn_gate"
    assert " ".join(layer) == f"{attention} pre_hada_norm d1 d2 d3"
    assert container.head_names == ("contrastive", "confidence")


def test_needle_rs_reads_the_same_generation_two_header():
    data = (GOLDEN / "tiny83.cact").read_bytes()
    header = read_container(data).header
    assert needle_rs.V2Engine.from_bytes(data).config() == {
        "vocab_size": header.vocab_count,
        "d_model": header.d_model,
        "num_heads": header.head_count,
        "num_kv_heads": header.kv_head_count,
        "num_layers": header.layer_count,
        "head_dim": header.qk_head_dim,
        "max_seq_len": header.max_seq_len,
        "mhc_lanes": header.lane_count,
        "kv_window": header.kv_window,
        "rope_theta": header.rope_theta,
        "engram_sites": list(header.sites),
    }


@pytest.mark.slow
def test_tag_82_is_tag_83_without_its_geometry():
    # needle-rs reads the body under tag 83 only. The official web engine of 2.0 was seen to load what is
    # written here (given 8192 pieces), and to refuse it once a shape or a dtype was changed.
    header_83 = type(PUBLISHED_82_HEADER)(**(vars(PUBLISHED_82_HEADER) | {"tag": layout.TAG_83}))
    bits = lambda name: 2  # noqa: E731
    old = random_container(PUBLISHED_82_HEADER, bits=bits, tokenizer=tiny_tokenizer())
    new = random_container(header_83, bits=bits, tokenizer=tiny_tokenizer())
    config = needle_rs.V2Engine.from_bytes(new).config()
    assert (config["num_layers"], config["d_model"], config["engram_sites"]) == (27, 512, [2, 15])
    old_file, new_file = read_container(old), read_container(new)
    assert old[4:20] == new[4:20]
    assert len(old_file.records) == 1 + 27 * 14 + 9 + 2 * 4 + 1 + 1
    assert vars(old_file.header) | {"tag": 0} == vars(new_file.header) | {"tag": 0}
    for name in (record.name for record in old_file.records):
        assert old_file.raw(name) == new_file.raw(name)


def test_codes_and_norms_are_those_in_the_file():
    container = read_container(GOLDEN / "tiny84.cact")
    record = container.record("layers.0.q_proj")
    blob = bytes(container.data[record.offset_bytes : record.offset_bytes + record.size_bytes])
    codes = container.codes("layers.0.q_proj")
    assert codes.shape == (4, 128)
    assert [codes[0, 0], codes[0, 1]] == [blob[0] & 15, blob[0] >> 4]
    norms = container.norms("layers.0.q_proj")
    assert norms.shape == (4, 1)
    assert norms.tobytes() == blob[-8:]


def test_raw_is_a_view_and_tensor_is_a_copy():
    container = read_container(GOLDEN / "tiny84.cact")
    assert container.raw("embedding").obj is container.data.obj
    first = container.tensor("final_norm")
    first[:] = 0
    assert container.tensor("final_norm").any()


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, np.frombuffer])
def test_any_buffer_will_do(form):
    data = (GOLDEN / "tiny84.cact").read_bytes()
    buffer = form(data, np.uint8).data if form is np.frombuffer else form(data)
    assert read_container(buffer).header == read_container(GOLDEN / "tiny84.cact").header


def test_questions_without_an_answer_are_usage_errors():
    container = read_container(GOLDEN / "tiny84.cact")
    for call, code in (
        (lambda: container.tensor("layers.9.q_proj"), "unknown_tensor"),
        (lambda: container.codes("final_norm"), "not_cq"),
        (lambda: container.norms("tokenizer"), "not_cq"),
        (lambda: container.tensor("tokenizer"), "not_a_tensor"),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == code


def test_a_file_without_heads_or_tokenizer_is_whole():
    container = read_container(random_container(TINY_HEADER))
    assert container.head_names == ()
    assert container.tokenizer_blob is None
    assert container.records[-1].name == "final_norm"


def test_heads_may_be_half_precision_throughout():
    from builder.cact.order import model_slots
    from builder.cact.writer import half_blob, write_container
    from tests.cact.samples import random_blob

    rng = np.random.default_rng(0)
    blobs = [random_blob(rng, slot, 4) for slot in model_slots(TINY_HEADER)]
    shapes = [(1,), (3, 2, 8), (3, 2), (4, 8), (4, 3, 2), (1, 32), (1,)]
    blobs += [half_blob(np.full(shape, 2.0)) for shape in shapes]
    container = read_container(write_container(TINY_HEADER, blobs))
    assert container.head_names == ("confidence",)
    assert container.record("heads.confidence.probes").shape == (3, 2, 8)


def test_a_path_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ContainerError, match=r"gone\.cact: cannot be read: no such file") as caught:
        read_container(tmp_path / "gone.cact")
    assert caught.value.code == "unreadable"
