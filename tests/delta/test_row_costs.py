"""P and norms are told apart, and what a row stream claims beyond its bytes is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from builder.delta import inspect_patch, make_patch, read_patch_header
from builder.delta.frame import read_segments
from builder.delta.layout import SegmentKind
from builder.delta.row_costs import TYPICAL, RowCosts
from builder.errors import PatchError
from tests.delta.test_guided import HOSTILE, TAG, random_q
from tests.delta.tiny_containers import Blob, container, fine_tuned

ROOT = Path(__file__).parents[2]
ROWS = 192


def guided_segment():
    segments = read_segments(HOSTILE, read_patch_header(HOSTILE))
    return next(segment for segment in segments if segment.kind is SegmentKind.CQ)


def blurred(blob: Blob, code_bytes: int) -> Blob:
    """The same codes with norms that nothing predicts in their last bits."""
    norms = np.frombuffer(blob.data[code_bytes:], "<u2")
    norms = norms + np.random.default_rng(0).integers(-60, 60, norms.size).astype("<i2").view("<u2")
    return dataclasses.replace(blob, data=blob.data[:code_bytes] + norms.tobytes())


def test_norms_that_nothing_predicts_are_seen_as_norms() -> None:
    old, new = fine_tuned(4, ROWS, random_q(5), strength=0.5, seed=5)
    plain = make_patch(container(TAG, [old]), container(TAG, [new]), effort=1)
    odd = make_patch(container(TAG, [old]), container(TAG, [blurred(new, ROWS * 128)]), effort=1)
    before, after = inspect_patch(plain).bytes_by_part, inspect_patch(odd).bytes_by_part
    assert before["p"] > before["norm"] > 0
    assert after["norm"] - before["norm"] > 50
    assert abs(after["p"] - before["p"]) < 0.1 * before["p"]


def test_the_typical_sizes_are_those_of_the_engine_and_of_the_page() -> None:
    state = (ROOT / "engine" / "src" / "delta_state.h").read_text()
    page = (ROOT / "docs" / "formats" / "patch.md").read_text()
    for text, start in ((state, "sg_side_typical[SG_SIDE_CLASSES] = {"), (page, "typical sizes, by class: ")):
        found = re.split(r"[;.]", text.partition(start)[2])[0]
        assert tuple(map(int, re.findall(r"\d+", found))) == TYPICAL


def test_a_stream_that_is_cut_or_too_long_is_refused() -> None:
    segment = guided_segment()
    side, *blocks = segment.payloads
    bad_streams = ((side[:-6], *blocks), (bytes(side) + bytes(9), *blocks), (side, *(b[:20] for b in blocks)))
    for payloads in bad_streams:
        bad = dataclasses.replace(segment, payloads=tuple(map(memoryview, payloads)))
        with pytest.raises(PatchError) as caught:
            RowCosts().p_bytes(bad)
        assert caught.value.code == "patch_corrupt"


@pytest.mark.slow
def test_damaged_patches_are_shown_or_refused_and_never_more() -> None:
    random = np.random.default_rng(1)
    for _ in range(60):
        bad = bytearray(HOSTILE)
        for at in random.integers(104, len(bad), 3):
            bad[at] = random.integers(0, 256)
        try:
            report = inspect_patch(bytes(bad))
        except PatchError:
            continue
        assert sum(report.bytes_by_part.values()) == len(bad)
