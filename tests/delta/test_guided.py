"""A fine-tune of low rank is found and costs less, at every width; a seeded LoRA start is recognised."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from builder.delta import apply_patch, codec, inspect_patch, layout, make_patch, read_patch_header
from builder.delta.frame import read_segments
from builder.delta.layout import SegmentKind
from builder.errors import PatchError, UsageError
from tests.delta.tiny_containers import Blob, Floats, container, fine_tuned

TAG = 0x05E12A84
ROWS, COLUMNS, RANK = 192, 256, 4


def _pair(tensors: list[tuple[Blob, Blob]]) -> tuple[bytes, bytes]:
    return container(TAG, [old for old, _ in tensors]), container(TAG, [new for _, new in tensors])


def random_q(seed: int, columns: int = COLUMNS) -> Floats:
    return np.random.default_rng(seed).standard_normal((RANK, columns))


def seeded_q(group: int, layer: int) -> Floats:
    """What `needle finetune` starts from with its default seed, rotated: JAX is the oracle."""
    jax = pytest.importorskip("jax")
    key = jax.random.PRNGKey(0)
    for _ in range(group + 1):
        key, drawn_from = jax.random.split(key)
    start = np.asarray(jax.random.normal(drawn_from, (layer + 1, COLUMNS, RANK)))[layer]
    hadamard = np.array([[1.0]])
    while len(hadamard) < 128:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    return (start.T.reshape(RANK, -1, 128) @ hadamard).reshape(RANK, COLUMNS)


def _coders(patch: bytes) -> list[int]:
    segments = read_segments(patch, read_patch_header(patch))
    return [segment.coder for segment in segments if segment.kind is SegmentKind.CQ]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_a_low_rank_update_is_found_at_every_width_and_costs_less(bits: int) -> None:
    base, target = _pair([fine_tuned(bits, ROWS, random_q(bits), strength=1, seed=bits)])
    guided, unguided = make_patch(base, target), make_patch(base, target, effort=0)
    assert apply_patch(base, guided) == target
    assert apply_patch(base, unguided) == target
    assert _coders(guided) == [2]
    assert len(guided) < 0.9 * len(unguided)
    assert RANK <= max(segment.rank for segment in inspect_patch(guided).segments) <= 2 * RANK


@pytest.mark.slow
def test_every_effort_rebuilds_and_more_effort_is_not_much_larger() -> None:
    base, target = _pair([fine_tuned(4, ROWS, random_q(7), strength=0.3, seed=7)])
    sizes = []
    for effort in (1, 3, 6):
        patch = make_patch(base, target, effort=effort)
        assert apply_patch(base, patch) == target
        sizes.append(len(patch))
    assert sizes[2] < 1.01 * sizes[0]


def _table_coders(patch: bytes) -> list[int]:
    segments = read_segments(patch, read_patch_header(patch))
    return [segment.coder for segment in segments if segment.kind is SegmentKind.TABLE]


def test_where_norms_grow_the_table_leaves_weights_less_room_in_their_cells() -> None:
    small, large = (
        _pair([fine_tuned(4, ROWS, random_q(8), strength=strength, seed=8)]) for strength in (0.2, 1.6)
    )
    assert _table_coders(make_patch(*small, effort=1)) == [layout.CODER_GUIDED]
    patch = make_patch(*large, effort=1)
    assert _table_coders(patch) == [layout.CODER_NARROWED]
    assert apply_patch(large[0], patch) == large[1]


def test_an_update_without_low_rank_is_left_unguided() -> None:
    full_rank = np.random.default_rng(1).standard_normal((COLUMNS, COLUMNS))
    base, target = _pair([fine_tuned(4, ROWS, full_rank, strength=0.3, seed=1)])
    patch = make_patch(base, target)
    assert apply_patch(base, patch) == target
    assert _coders(patch) == [1]


def test_norms_that_are_zero_or_tiny_or_infinite_round_trip_beside_a_guided_shift() -> None:
    old, new = fine_tuned(4, ROWS, random_q(2), strength=0.3, seed=2)
    code_bytes = ROWS * COLUMNS // 2
    odd = np.array([0, 1, 0x3FF, 0x7C00, 0x7E00, 0x8000, 0xFBFF], "<u2").tobytes()

    def with_odd_norms(blob: Blob, at: int) -> Blob:
        data = bytearray(blob.data)
        data[code_bytes + at : code_bytes + at + len(odd)] = odd
        return Blob(3, blob.shape, 4, bytes(data))

    base, target = _pair([(with_odd_norms(old, 0), with_odd_norms(new, 40))])
    patch = make_patch(base, target)
    assert apply_patch(base, patch) == target
    assert _coders(patch) == [2]


@pytest.mark.slow
def test_a_seeded_start_is_named_instead_of_carried() -> None:
    tensors = [
        fine_tuned(4, ROWS, seeded_q(group, layer), strength=0.3, seed=10 * layer + group)
        for layer in (0, 1)
        for group in (3, 1)
    ]
    base, target = _pair(tensors)
    named, carried = make_patch(base, target), make_patch(base, target, adapter_seed=12345)
    assert apply_patch(base, named) == target
    assert apply_patch(base, carried) == target
    assert _coders(named) == [3] * 4
    assert _coders(carried) == [2] * 4
    assert inspect_patch(named).bytes_by_part["q"] < 0.35 * inspect_patch(carried).bytes_by_part["q"]


def test_numbers_out_of_range_are_the_callers_mistake() -> None:
    base, target = _pair([fine_tuned(4, 8, random_q(3), strength=0.3, seed=3)])
    for arguments in ({"effort": 10}, {"effort": -1}, {"adapter_seed": 2**32}):
        with pytest.raises(UsageError):
            make_patch(base, target, **arguments)


# ---- hostile guided patches ----

HOSTILE_BASE, HOSTILE_TARGET = _pair([fine_tuned(4, ROWS, random_q(5), strength=0.3, seed=5)])
HOSTILE = make_patch(HOSTILE_BASE, HOSTILE_TARGET, effort=1)


def _sealed(patch: bytearray) -> bytes:
    seal = hashlib.sha256(patch[: -layout.TRAILER_BYTES]).digest()
    return bytes(patch[: -layout.TRAILER_BYTES]) + seal[: layout.TRAILER_BYTES]


def _fields_at(kind: SegmentKind) -> int:
    """Where the fields of the first segment of a kind start, in `HOSTILE`."""
    at = layout.HEADER.size
    for segment in read_segments(HOSTILE, read_patch_header(HOSTILE)):
        if segment.kind is kind:
            return at + 1
        at += segment.field_bytes + sum(4 + len(payload) for payload in segment.payloads)
    raise AssertionError(kind)


@pytest.mark.parametrize(
    ("kind", "from_end", "value", "code"),
    [
        (SegmentKind.CQ, 2, 0, "patch_bad_segment"),  # rank 0
        (SegmentKind.CQ, 2, 33, "patch_bad_segment"),  # rank above 32
        (SegmentKind.CQ, 1, 16, "patch_bad_segment"),  # pre_shift above 15
        (SegmentKind.CQ, 3, 3, "patch_bad_segment"),  # a table that was never set
        (SegmentKind.CQ, 3, 255, "patch_bad_segment"),  # a table that cannot be
        (SegmentKind.CQ, 4, 6, "patch_bad_segment"),  # six bits
        (SegmentKind.TABLE, 3, 21, "patch_bad_segment"),  # noise
        (SegmentKind.TABLE, 2, 3, "patch_bad_segment"),  # buckets too narrow
        (SegmentKind.TABLE, 2, 10, "patch_bad_segment"),  # buckets too wide
        (SegmentKind.TABLE, 1, 2, "patch_bad_segment"),  # floor
        (SegmentKind.TABLE, 4, 4, "patch_bad_segment"),  # a fifth computed table
        (SegmentKind.TABLE, 5, 0, "patch_bad_segment"),  # no codes
    ],
)
def test_guided_fields_out_of_bounds_are_refused(
    kind: SegmentKind, from_end: int, value: int, code: str
) -> None:
    bad = bytearray(HOSTILE)
    start = _fields_at(kind)
    bad[start + bad[start - 1] - from_end] = value
    with pytest.raises(PatchError) as caught:
        apply_patch(HOSTILE_BASE, _sealed(bad))
    assert caught.value.code == code


@pytest.mark.slow
def test_resealed_damage_anywhere_is_refused_and_never_traps() -> None:
    random = np.random.default_rng(0)
    expect = read_patch_header(HOSTILE)
    for _ in range(150):
        bad = bytearray(HOSTILE)
        for at in random.integers(layout.HEADER.size, len(bad) - layout.TRAILER_BYTES, random.integers(1, 4)):
            bad[at] = (bad[at] + random.integers(1, 256)) % 256
        with pytest.raises(PatchError):
            codec.rebuild([HOSTILE_BASE], [_sealed(bad)], expect)
