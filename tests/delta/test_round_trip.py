"""A patch turns its base into its target, byte for byte, whatever the two have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.delta import apply_patch, codec, make_patch, read_patch_header
from tests.delta.tiny_containers import Blob, container, cq, floats, nudged, pairs, raw

FRAME_BYTES_MAX = 200


def _pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(data):
            return
        yield data[at : at + size]
        at += size


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(pairs())
def test_any_pair_of_containers_round_trips_within_the_bound(pair: tuple[bytes, bytes]) -> None:
    base, target = pair
    patch = make_patch(base, target)
    assert apply_patch(base, patch) == target
    assert len(patch) <= len(target) + FRAME_BYTES_MAX


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(pairs(), st.lists(st.integers(1, 90), min_size=1), st.lists(st.integers(1, 90), min_size=1))
def test_any_cut_of_the_inputs_gives_the_same_target(
    pair: tuple[bytes, bytes], base_sizes: list[int], patch_sizes: list[int]
) -> None:
    base, target = pair
    patch = make_patch(base, target)
    pieces = _pieces(base, base_sizes), _pieces(patch, patch_sizes)
    assert codec.rebuild(*pieces, read_patch_header(patch)) == target


@settings(deadline=None, max_examples=10)
@given(pairs())
def test_the_same_pair_gives_the_same_patch(pair: tuple[bytes, bytes]) -> None:
    assert make_patch(*pair) == make_patch(*pair)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_every_code_width_costs_less_than_the_codes_when_few_change(bits: int) -> None:
    old = cq(64, 256, bits, seed=bits)
    base, target = container(0x05E12A84, [old]), container(0x05E12A84, [nudged(old, seed=1, share=0.02)])
    patch = make_patch(base, target)
    assert apply_patch(base, patch) == target
    assert len(patch) < len(old.data) / 2


@pytest.mark.slow
def test_a_tensor_larger_than_one_block_round_trips() -> None:
    old = cq(1100, 512, 4, seed=3)
    base, target = container(0x05E12A84, [old]), container(0x05E12A84, [nudged(old, seed=4, share=0.2)])
    assert apply_patch(base, make_patch(base, target)) == target


def test_a_dropped_tensor_and_the_shift_of_all_offsets_behind_it_are_cheap() -> None:
    kept = [cq(16, 256, 4, seed) for seed in range(12)]
    base = container(0x05E12A84, [*kept[:6], floats(1, 300, seed=99), *kept[6:], raw(b"tokenizer" * 50)])
    target = container(0x05E12A84, [*kept, raw(b"tokenizer" * 50)])
    assert len(make_patch(base, target)) < 400


def with_rows(blob: Blob, rows: list[int]) -> Blob:
    """The same tensor with these of its rows."""
    row_count, columns = blob.shape
    norm_bytes = 2 * row_count * -(-columns // 128)
    codes = np.frombuffer(blob.data[:-norm_bytes], np.uint8).reshape(row_count, -1)
    norms = np.frombuffer(blob.data[-norm_bytes:], np.uint8).reshape(row_count, -1)
    return Blob(blob.dtype, (len(rows), columns), blob.bits, codes[rows].tobytes() + norms[rows].tobytes())


@pytest.mark.parametrize("rows", [[0, 1, 2, 5, 6, 11], [3, 4], [*range(12)]])
def test_rows_that_stay_are_cheap_whether_others_go_or_come(rows: list[int]) -> None:
    tall = cq(12, 2048, 4, seed=7)
    short = with_rows(tall, rows)
    around = cq(16, 256, 4, seed=8), raw(b"tokenizer" * 50)
    base, target = (container(0x05E12A84, [around[0], blob, around[1]]) for blob in (tall, short))
    for old, new in ((base, target), (target, base)):
        patch = make_patch(old, new)
        assert apply_patch(old, patch) == new
        new_rows = max(0, 12 - len(rows)) if new is base else 0
        assert len(patch) < 400 + new_rows * (2048 // 2 + 2 * 16 + 24)
    changed = container(0x05E12A84, [around[0], nudged(short, seed=9, share=0.3), around[1]])
    assert apply_patch(base, make_patch(base, changed)) == changed


def test_an_equal_pair_costs_no_more_than_the_frame() -> None:
    base = container(0x05E12A84, [cq(64, 256, 4, seed=5)])
    assert len(make_patch(base, base)) < FRAME_BYTES_MAX
