"""Random generation-2 models, scaled so that every part moves the logits.

Upstream's packages of that generation cannot be installed beside the present one: the file is written by
`builder.cact`, and needle-rs, which read the published ones, says what it means. What upstream's own model
computes from such files stands in tests/golden/generation_2.json (tests/parity/golden_generation_2.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from builder.cact.header import Header
from builder.cact.layout import TAG_83, Kind
from builder.cact.order import Slot, model_slots
from builder.cact.quantise import quantise
from builder.cact.sentencepiece_model import read_sentencepiece
from builder.cact.tokenizer import pack_tokenizer
from builder.cact.writer import Blob, cq_blob, half_blob, raw_blob, write_container

TOKENIZER_MODEL = Path(__file__).parents[2] / "examples" / "demo" / "tokenizer.model"
HEADER = Header(
    **{"tag": TAG_83, "tensor_count": 1, "kv_window": 24, "kv_bits": 8, "vocab_count": 1024},
    **{"out_vocab_count": 0, "d_model": 256, "head_count": 4, "kv_head_count": 2, "layer_count": 4},
    **{"qk_head_dim": 64, "v_head_dim": 64, "max_seq_len": 512, "hada_n": 256, "lane_count": 4},
    **{"sliding_window": 0, "global_mask": 0, "qkv_conv_taps": 0, "engram_slots": 61, "engram_sub_dim": 64},
    **{"engram_table_count": 4, "engram_conv_taps": 4, "engram_dilation": 3, "engram_seed_heads": 0},
    **{"orders": (2, 3), "sites": (1, 3), "rope_theta": 1e5},
)

SCALE_AND_MEAN = {
    **{"d1": (0.3, 1.0), "d2": (0.3, 1.0), "d3": (0.3, 1.0), "attn_gate": (1.0, 0.0)},
    **{"taps": (0.5, 0.0), "mhc_a": (0.5, 0.5), "mhc_b": (1.0, 0.0)},
}
"""By part of a binary16 tensor's name; the norms' scales have neither."""


def write_generation_2(header: Header, seed: int, bits: Mapping[str, int] | None = None) -> bytes:
    """A file with this header (`HEADER`, or one derived from it) and the demo's tokenizer.

    `bits`: part of a CQ tensor's name -> its width; 4 where nothing matches.
    """
    rng = np.random.default_rng(seed)
    blobs = [_random_blob(header, slot, rng, bits or {}) for slot in model_slots(header)]
    blobs.append(raw_blob(pack_tokenizer(read_sentencepiece(TOKENIZER_MODEL))))
    return write_container(header, blobs)


def _random_blob(header: Header, slot: Slot, rng: np.random.Generator, bits: Mapping[str, int]) -> Blob:
    name, noise = slot.name.split(".")[-1], rng.standard_normal(slot.shape).astype(np.float32)
    if slot.kind is Kind.CQ:
        scale = {"embedding": 2 * header.d_model**-0.5, "tables": 1.0}.get(name, slot.shape[1] ** -0.5)
        width = next((width for part, width in bits.items() if part in slot.name), 4)
        return cq_blob(*quantise(noise * np.float32(scale), width), width, slot.shape[1])
    if name == "mhc_b_res":
        return half_blob(noise + 2 * np.eye(header.lane_count))
    if name == "final_norm":
        return half_blob(noise - 1)
    scale, mean = next((shape for part, shape in SCALE_AND_MEAN.items() if part in name), (0.3, 0.0))
    return half_blob(scale * noise + mean)
