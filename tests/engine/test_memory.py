"""Memory: a whole instance with one session takes little more than the file and its keys and values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builder.cact.codes import pack_codes
from builder.cact.header import Header
from builder.cact.layout import GROUP, TAG_84, Kind, padded
from builder.cact.order import model_slots
from builder.cact.writer import Blob, half_blob, single_blob, write_container
from builder.runtime.engine import NUMERICS, Engine
from tests.engine.generation_2 import HEADER

SHARE_MAX = 1.15
FULL_SIZE = {"vocab_count": 8192, "max_seq_len": 2048, "kv_window": 256}
GENERATION_2 = replace(
    HEADER,
    **{**FULL_SIZE, "d_model": 512, "head_count": 8, "kv_head_count": 4, "layer_count": 27, "hada_n": 512},
    **{"engram_slots": 8192, "engram_sub_dim": 128, "sites": (2, 15)},
)
GENERATION_3 = replace(
    GENERATION_2,
    **{"tag": TAG_84, "d_model": 768, "head_count": 12, "kv_head_count": 2, "layer_count": 20},
    **{"hada_n": 1024, "qk_head_dim": 48, "sliding_window": 1024, "global_mask": 0x84210},
    **{"qkv_conv_taps": 3, "engram_slots": 18432, "engram_table_count": 6, "sites": (3, 7, 11, 15, 19)},
)


def write_zeros(header: Header) -> bytes:
    """A model of this geometry whose weights are all zero."""
    blobs = []
    for slot in model_slots(header):
        if slot.kind is Kind.CQ:
            rows, columns = slot.shape[0], padded(slot.shape[1])
            codes = pack_codes(np.zeros((1, columns), np.uint8), 4) * rows
            blobs.append(Blob(Kind.CQ, slot.shape, codes + bytes(2 * rows * columns // GROUP), 4))
        elif slot.kind is Kind.FP32:
            blobs.append(single_blob(np.arange(slot.shape[0])))  # a permutation
        else:
            blobs.append(half_blob(np.zeros(slot.shape)))
    return write_container(header, blobs)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("header", [GENERATION_2, GENERATION_3], ids=["45 M", "121 M"])
def test_a_session_needs_little_beyond_file_and_cache(engine: Engine, header: Header, numerics: str):
    data = write_zeros(header)
    for capacity in (64, 2048):
        model = engine.open(data, numerics=numerics)
        session = model.session(capacity)
        assert model.memory_bytes <= SHARE_MAX * (len(data) + session.cache_bytes)


def test_an_8_bit_cache_is_a_quarter_of_the_exact_one_and_the_units(engine: Engine, tiny: bytes):
    exact, fast = (engine.open(tiny, numerics=name).session(32).cache_bytes for name in NUMERICS)
    positions = 2 * 32  # layers; one key/value head in each
    assert exact == positions * 4 * (4 + 4)
    assert fast == exact // 4 + positions * 8
