"""Every broken file is refused with the code of its defect; no bytes make the reader fail otherwise."""

from __future__ import annotations

import collections
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.cact.reader import read_container
from builder.errors import ContainerError
from tests.cact.hostile import GEN_2, GEN_3, WIDTHS, Hostile, hostile_files

FILES = hostile_files()
TINY = {"gen_3": GEN_3, "gen_2": GEN_2, "widths": WIDTHS}


def code_of(data: bytes) -> str | None:
    """The code of the refusal, None for a file that is taken."""
    try:
        read_container(data)
    except ContainerError as error:
        return error.code
    return None


@pytest.mark.parametrize("hostile", FILES, ids=lambda hostile: hostile.name.replace(" ", "_"))
def test_each_defect_has_its_code(hostile: Hostile):
    with pytest.raises(ContainerError) as caught:
        read_container(hostile.data)
    assert caught.value.code == hostile.code
    assert "docs/formats/cact.md rule" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_cases_have_different_names_and_reach_every_code():
    assert len({hostile.name for hostile in FILES}) == len(FILES)
    codes = collections.Counter(hostile.code for hostile in FILES)
    assert len(codes) == 12
    assert all(data not in [hostile.data for hostile in FILES] for data in TINY.values())


@pytest.mark.parametrize("name", TINY)
def test_a_file_cut_anywhere_in_header_or_directory_or_gap_is_refused(name):
    data = TINY[name]
    end = read_container(data).records[0].offset_bytes
    assert {code_of(data[:size]) for size in range(0, end, 5)} == {"cact_truncated"}


def places_of(data: bytes) -> list[int]:
    """Every byte of header, directory and tokenizer, and every fifth of the tensors, which lie at 64s."""
    records = read_container(data).records
    start, end = records[0].offset_bytes, records[-1].offset_bytes
    return [*range(start), *range(start, end, 5), *range(end, len(data))]


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_file_cut_in_any_part_is_refused(name):
    data = TINY[name]
    assert {code_of(data[:size]) for size in places_of(data)} == {"cact_truncated"}


@pytest.mark.slow
def test_a_flip_in_header_or_directory_is_refused_with_a_code_or_still_a_valid_file():
    end = read_container(WIDTHS).records[0].offset_bytes
    try_flips(WIDTHS, range(0, end, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_flip_in_any_part_is_refused_with_a_code_or_still_a_valid_file(name):
    try_flips(TINY[name], places_of(TINY[name]))


def try_flips(file: bytes, places: Iterable[int]) -> None:
    """One flip per place: all bits at even ones, one bit at odd ones."""
    data = bytearray(file)
    for at in places:
        mask = 1 << (at // 2 % 8) if at % 2 else 0xFF
        data[at] ^= mask
        code = code_of(bytes(data))
        assert code is None or code.startswith("cact_"), (at, mask, code)
        data[at] ^= mask


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_random_words_anywhere_never_crash_the_reader(data):
    file = bytearray(data.draw(st.sampled_from(list(TINY.values()))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(file) - 8))
        value = data.draw(
            st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x01\0\0\0", b"\0\0\0\x80", b"\xff\xff\xff\x7f"])
        )
        file[at : at + len(value)] = value
    code_of(bytes(file))


@given(st.binary(max_size=400))
@settings(deadline=None, max_examples=50)
def test_bytes_that_begin_like_a_file_never_crash_the_reader(tail):
    for tag in (0x82, 0x83, 0x84):
        assert code_of(bytes([tag, 0x2A, 0xE1, 0x05]) + tail) is not None


def test_a_hostile_count_costs_no_memory():
    for hostile in FILES:
        tracemalloc.start()
        code_of(hostile.data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1_000_000, hostile.name


def test_fp16_zero_negative_and_subnormal_norms_are_taken():
    container = read_container(GEN_3)
    record = container.record("embedding")
    for word in (b"\x00\x00", b"\x00\x80", b"\x01\x00", b"\x00\xbc", b"\xff\x7b"):
        data = bytearray(GEN_3)
        end = record.offset_bytes + record.size_bytes
        data[end - 2 : end] = word
        assert code_of(bytes(data)) is None
