"""The C reader against the Python reader: the same verdict, by the same code, on damage of any kind."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.cact.layout import HEADER_FIELDS, TAG_82, TAG_82_GEOMETRY, TAG_83, TAG_84
from builder.cact.order import model_slots
from builder.cact.reader import read_container
from builder.cact.writer import write_container
from builder.errors import ContainerError
from builder.runtime.engine import Engine
from tests.engine.damage import damaged, random_blob


def python_verdict(data: bytes) -> str:
    try:
        read_container(data)
    except ContainerError as error:
        return error.code
    return "ok"


def engine_verdict(engine: Engine, data: bytes) -> str:
    try:
        engine.open(data)
    except ContainerError as error:
        return error.code
    return "ok"


def test_a_whole_file_is_taken(engine, tiny):
    info = engine.open(tiny).info
    header = read_container(tiny).header
    assert (info.d_model, info.layer_count, info.vocab_count) == (32, 2, header.vocab_count)
    assert (info.bos_id, info.im_end_id, info.tool_call_close_id) == (2, 5, 11)


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(st.data())
def test_both_readers_say_the_same_of_any_damage(engine, tiny, data):
    broken = data.draw(damaged(tiny))
    assert engine_verdict(engine, broken) == python_verdict(broken)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *[("tensor_count", value) for value in (0, 4097)],
        *[("codebook_count", value) for value in (27, 29)],
        *[("kv_bits", value) for value in (0, 33)],
        *[("kv_head_count", value) for value in (0, 3, 129)],
        *[("qk_head_dim", value) for value in (1, 3, 513, 514)],
        *[("hada_n", value) for value in (16, 64)],
        *[("out_vocab_count", value) for value in (1025, 2**32 - 1)],
        *[("engram_table_count", value) for value in (0, 3, 65)],
        *[("engram_slots", value) for value in (0, 2**26 + 1)],
        *[("orders[0]", value) for value in (0, 17)],
        ("orders[2]", 1),
        *[("site_count", value) for value in (0, 2, 17)],
        *[("sites[0]", value) for value in (0, 2)],
        ("sites[5]", 1),
        *[("rope_theta", value) for value in (0, 0x80000000, 0xBF800000, 0x7F800000, 0x7FC00000)],
    ],
)
def test_both_readers_say_the_same_of_every_bad_word(engine, tiny, word, value):
    at = 4 * HEADER_FIELDS[TAG_84].index(word)
    broken = tiny[:at] + value.to_bytes(4, "little") + tiny[at + 4 :]
    assert engine_verdict(engine, broken) == python_verdict(broken)


@pytest.mark.parametrize("codes", [(2, 1, 3), (1, 1, 2), (1, 2, 4), (0, 1, 2), (1, 2, 2.5)])
def test_a_head_manifest_out_of_order_is_refused(engine, tiny, codes):
    at = read_container(tiny).record("heads.manifest").offset_bytes
    broken = tiny[:at] + np.array(codes, "<f2").tobytes() + tiny[at + 6 :]
    assert engine_verdict(engine, broken) == python_verdict(broken) == "cact_bad_value"


@pytest.mark.parametrize(("place", "value"), [(3, 4.0), (0, -1.0), (7, 32.0), (7, 0.5), (7, float("nan"))])
def test_a_shuffle_that_is_no_permutation_is_refused(engine, tiny, place, value):
    record = read_container(tiny).record("hada_p2")
    numbers = np.arange(32, dtype="<f4")
    numbers[place] = value
    broken = bytearray(tiny)
    broken[record.offset_bytes : record.offset_bytes + record.size_bytes] = numbers.tobytes()
    assert engine_verdict(engine, bytes(broken)) == python_verdict(bytes(broken)) == "cact_bad_value"


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_file_cut_anywhere_is_refused_alike(engine, tiny, data):
    broken = tiny[: data.draw(st.integers(0, len(tiny) - 1))]
    verdict = engine_verdict(engine, broken)
    assert verdict == python_verdict(broken)
    assert verdict != "ok"


def generation_2(tiny: bytes, tag: int, *, published: bool = False) -> bytes:
    """A generation-2 file with random tensors, of the published geometry or a small one."""
    header = read_container(tiny).header
    if published:
        words = {name: value for name, value in TAG_82_GEOMETRY.items() if name in vars(header)}
        header = dataclasses.replace(
            header, **words, qk_head_dim=64, v_head_dim=64, orders=(2, 3), sites=(2, 15)
        )
        header = dataclasses.replace(header, layer_count=27)
    header = dataclasses.replace(
        header,
        tag=tag,
        out_vocab_count=0,
        sliding_window=0,
        global_mask=0,
        qkv_conv_taps=0,
        engram_seed_heads=0,
    )
    rng = np.random.default_rng(6)
    return write_container(header, [random_blob(slot, rng) for slot in model_slots(header)])


def test_a_small_generation_2_file_opens(engine, tiny):
    info = engine.open(generation_2(tiny, TAG_83)).info
    assert info.tag == TAG_83
    assert info.im_end_id is None


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_both_readers_say_the_same_of_damaged_generation_2_files(engine, tiny, data):
    broken = data.draw(damaged(generation_2(tiny, TAG_83)))
    assert engine_verdict(engine, broken) == python_verdict(broken)


def test_a_ternary_tensor_with_the_unused_crumb_is_refused(engine, every_width):
    record = read_container(every_width).record("layers.3.gate_proj")
    broken = bytearray(every_width)
    broken[record.offset_bytes + record.code_bytes - 1] = 0b01_11_10_00
    assert engine_verdict(engine, every_width) == "ok"
    assert engine_verdict(engine, bytes(broken)) == python_verdict(bytes(broken)) == "cact_bad_value"


@pytest.mark.slow
def test_the_oldest_tag_is_the_next_one_with_its_fixed_geometry(engine, tiny):
    said = []
    for tag in (TAG_82, TAG_83):
        model = engine.open(generation_2(tiny, tag, published=True))
        info = model.info
        assert (info.tag, info.layer_count, info.d_model, info.max_seq_len) == (tag, 27, 512, 2048)
        session = model.session(8)
        session.append([2, 5, 7])
        said.append(session.logits())
    assert np.isfinite(said[0]).all()
    assert np.ptp(said[0]) > 0
    assert said[0].tobytes() == said[1].tobytes()


@pytest.mark.slow
def test_damage_does_reach_every_rule(engine, tiny):
    """The strategy is worth its time only if it finds many different causes."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        broken = bytearray(tiny)
        word = 4 * int(rng.integers(0, 700))
        broken[word : word + 4] = int(rng.integers(0, 9)).to_bytes(4, "little")
        seen.add(engine_verdict(engine, bytes(broken)))
    assert len(seen) >= 7
