"""A patch that is damaged, cut or for something else is refused with its code; nothing of it is applied."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Callable

import pytest

from builder.delta import apply_patch, codec, layout, make_patch, read_patch_header
from builder.delta.frame import read_segments
from builder.errors import ContainerError, PatchError
from tests.delta.tiny_containers import container, cq, floats, nudged, raw

OLD = [cq(3, 256, 4, seed=1), floats(1, 20, seed=2), cq(2, 128, 2, seed=3), raw(b"words and words")]
NEW = [nudged(OLD[0], 1, 0.3), nudged(OLD[1], 2, 0.5), nudged(OLD[2], 3, 0.2), raw(b"other words")]
BASE, TARGET = container(0x05E12A84, OLD), container(0x05E12A84, NEW)
PATCH = make_patch(BASE, TARGET)
RECORDS_AT = 196 + 4 * 28


def _sealed(patch: bytearray) -> bytes:
    """The patch with header check and trailer made good again, so that a deeper check has to speak."""
    checked = layout.HEADER_CHECKED_BYTES
    patch[checked : checked + 4] = hashlib.sha256(patch[:checked]).digest()[:4]
    patch[-layout.TRAILER_BYTES :] = hashlib.sha256(patch[: -layout.TRAILER_BYTES]).digest()[
        : layout.TRAILER_BYTES
    ]
    return bytes(patch)


@pytest.mark.slow
def test_every_flipped_byte_is_refused() -> None:
    expect = read_patch_header(PATCH)
    for at in range(len(PATCH)):
        bad = bytearray(PATCH)
        bad[at] ^= 1 << at % 8
        with pytest.raises(PatchError):
            codec.rebuild([BASE], [bytes(bad)], expect)


@pytest.mark.slow
def test_every_cut_is_refused_as_truncated() -> None:
    expect = read_patch_header(PATCH)
    for end in range(len(PATCH)):
        with pytest.raises(PatchError) as caught:
            codec.rebuild([BASE], [PATCH[:end]], expect)
        assert caught.value.code == "patch_truncated"


def test_a_byte_too_many_is_refused() -> None:
    expect = read_patch_header(PATCH)
    for pieces in ([PATCH + b"\0"], [PATCH, b"\0"]):
        with pytest.raises(PatchError) as caught:
            codec.rebuild([BASE], pieces, expect)
        assert caught.value.code == "patch_trailing_bytes"


@pytest.mark.parametrize(
    ("at", "value", "code"),
    [
        (0, 0x88, "patch_bad_magic"),
        (8, 2, "patch_bad_version"),
        (10, 1, "patch_bad_header"),
        (100, 0, "patch_bad_header"),
    ],
)
def test_a_bad_header_is_refused_with_its_code_before_anything_is_allocated(
    at: int, value: int, code: str
) -> None:
    bad = bytearray(PATCH)
    bad[at] = value
    if at == 10:
        bad = bytearray(_sealed(bad))
    for read in (lambda: apply_patch(BASE, bytes(bad)), lambda: read_patch_header(bytes(bad))):
        with pytest.raises(PatchError) as caught:
            read()
        assert caught.value.code == code


def test_a_patch_for_another_base_is_refused() -> None:
    other = container(0x05E12A84, [cq(3, 256, 4, seed=9), *OLD[1:]])
    with pytest.raises(PatchError, match="base_sha256") as caught:
        apply_patch(other, PATCH)
    assert caught.value.code == "patch_wrong_base"


def test_a_patch_for_another_target_is_refused_before_it_is_applied() -> None:
    expect = dataclasses.replace(read_patch_header(PATCH), target_sha256="00" * 32)
    with pytest.raises(PatchError) as caught:
        codec.rebuild([BASE], [PATCH], expect)
    assert caught.value.code == "patch_wrong_target"


def test_a_base_that_ends_early_is_refused() -> None:
    with pytest.raises(PatchError) as caught:
        codec.rebuild([BASE[:300]], [PATCH], read_patch_header(PATCH))
    assert caught.value.code == "patch_wrong_base"


def test_base_bytes_that_are_not_what_their_hash_says_are_caught_by_the_target_hash() -> None:
    bad = bytearray(BASE)
    bad[-200] ^= 1
    with pytest.raises(PatchError) as caught:
        codec.rebuild([bytes(bad)], [PATCH], read_patch_header(PATCH))
    assert caught.value.code == "patch_hash_mismatch"


def _code(read: Callable[[], object]) -> str | None:
    try:
        read()
    except PatchError as error:
        return error.code
    return None


def _both_codes(bad: bytes) -> tuple[str | None, str | None]:
    """What the two programs that read a patch make of it: the engine, and Python's look at the frame."""
    header = read_patch_header(bad)
    return _code(lambda: apply_patch(BASE, bad)), _code(lambda: list(read_segments(bad, header)))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("00", "patch_bad_segment"),  # no fields at all
        ("01 05", "patch_bad_segment"),  # a kind and no coder
        ("04", "patch_bad_segment"),  # a number that goes on behind the fields
        ("06", "patch_bad_segment"),  # a byte too many
        ("41", "patch_bad_segment"),  # more fields than there can be
        ("05 00", "patch_bad_segment"),  # kind 0
        ("05 07", "patch_bad_segment"),  # a kind of the future
        ("05 01 01", "patch_bad_coder"),  # a coder that a copy has not
        ("05 01 07", "patch_bad_coder"),  # a coder of the future
        ("05 01 00 00 b8 00", "patch_bad_segment"),  # a superfluous zero byte
    ],
)
def test_bad_fields_are_refused_by_both_programs_with_their_code(fields: str, code: str) -> None:
    bad, start = bytearray(PATCH), layout.HEADER.size
    assert bad[start : start + 5].hex(" ") == "05 01 00 00 b8"  # a copy whose length takes two bytes
    bad[start : start + len(bytes.fromhex(fields))] = bytes.fromhex(fields)
    assert _both_codes(_sealed(bad)) == (code, code)


def test_both_programs_know_the_same_coders_of_every_kind() -> None:
    for kind in range(9):
        for coder in range(5):
            bad = bytearray(PATCH)
            bad[layout.HEADER.size + 1 : layout.HEADER.size + 3] = kind, coder
            is_known = coder in layout.CODERS.get(kind, ())
            for code in _both_codes(_sealed(bad)):
                assert (code == "patch_bad_coder") == (kind in layout.CODERS and not is_known), (kind, coder)
                assert kind in layout.CODERS or code == "patch_bad_segment"


def test_what_is_no_container_gets_no_patch() -> None:
    for base, target in ((b"", TARGET), (BASE, BASE[:-1]), (PATCH, TARGET), (BASE, b"\0" * 300)):
        with pytest.raises(ContainerError):
            make_patch(base, target)


@pytest.mark.parametrize(
    ("at", "form", "value", "field"),
    [
        (0, "<I", 0x05E12A85, "header.tag"),
        (4, "<I", 65537, "header.tensor_count"),
        (8, "<I", 1025, "header.codebook_count"),
        (4, "<I", 65536, "directory"),
        (RECORDS_AT + 20, "<Q", RECORDS_AT, "record.offset"),
        (RECORDS_AT + 44 + 20, "<Q", len(BASE) + 1, "record.offset"),
        (RECORDS_AT + 28, "<Q", 2**64 - 1, "record.nbytes"),
    ],
)
def test_a_container_whose_parts_do_not_lie_in_it_is_refused(
    at: int, form: str, value: int, field: str
) -> None:
    bad = bytearray(BASE)
    struct.pack_into(form, bad, at, value)
    for pair in ((bytes(bad), TARGET), (BASE, bytes(bad))):
        with pytest.raises(ContainerError, match=rf": {field}\b"):
            make_patch(*pair)
