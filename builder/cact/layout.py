"""The numbers of the `.cact` format: tags, field orders, limits, codebooks.

Owns: what docs/formats/cact.md calls the layout, as constants. Does not know: files, weights, models.
Source: docs/formats/cact.md; the codebooks are the 28 floats that upstream writes into every file (Lloyd-Max
levels of a unit Gaussian, divided by the square root of 128).
"""

from __future__ import annotations

import enum
import struct

import numpy as np

TAG_82 = 0x05E12A82
"""Generation 2, oldest: five words, geometry fixed by the tag (`TAG_82_GEOMETRY`)."""
TAG_83 = 0x05E12A83
"""Generation 2 with its geometry in the header."""
TAG_84 = 0x05E12A84
"""Generation 3."""
GENERATIONS = {TAG_82: 2, TAG_83: 2, TAG_84: 3}

COMMON_WORDS = ("tag", "tensor_count", "codebook_count", "kv_window", "kv_bits")
TAG_83_WORDS = (
    *COMMON_WORDS,
    *(
        "vocab_count",
        "d_model",
        "head_count",
        "kv_head_count",
        "layer_count",
        "head_dim",
        "max_seq_len",
        "hada_n",
    ),
    *("lane_count", "engram_slots", "engram_sub_dim", "engram_table_count", "engram_conv_taps"),
    *("engram_dilation", "order_count", *(f"orders[{i}]" for i in range(4))),
    *("site_count", *(f"sites[{i}]" for i in range(4))),
)
TAG_84_WORDS = (
    *COMMON_WORDS,
    *(
        "vocab_count",
        "out_vocab_count",
        "d_model",
        "head_count",
        "kv_head_count",
        "layer_count",
        "qk_head_dim",
    ),
    *("v_head_dim", "max_seq_len", "hada_n", "lane_count", "sliding_window", "global_mask_low"),
    *("global_mask_high", "qkv_conv_taps", "engram_slots", "engram_sub_dim", "engram_table_count"),
    *("engram_conv_taps", "engram_dilation", "engram_seed_heads"),
    *("order_count", *(f"orders[{i}]" for i in range(4))),
    *("site_count", *(f"sites[{i}]" for i in range(16))),
)
HEADER_FIELDS = {
    TAG_82: COMMON_WORDS,
    TAG_83: (*TAG_83_WORDS, "rope_theta"),
    TAG_84: (*TAG_84_WORDS, "rope_theta"),
}
"""Names of the header's four-byte fields in file order: u32, apart from `rope_theta` (f32)."""
HEADER_STRUCTS = {
    TAG_82: struct.Struct("<5I"),
    TAG_83: struct.Struct("<29If"),
    TAG_84: struct.Struct("<48If"),
}

TAG_82_GEOMETRY: dict[str, int | float] = {
    "vocab_count": 8192,
    "d_model": 512,
    "head_count": 8,
    "kv_head_count": 4,
    "layer_count": 27,
    "head_dim": 64,
    "max_seq_len": 2048,
    "hada_n": 512,
    "lane_count": 4,
    "engram_slots": 8192,
    "engram_sub_dim": 128,
    "engram_table_count": 4,
    "engram_conv_taps": 4,
    "engram_dilation": 3,
    "order_count": 2,
    "orders[0]": 2,
    "orders[1]": 3,
    "orders[2]": 0,
    "orders[3]": 0,
    "site_count": 2,
    "sites[0]": 2,
    "sites[1]": 15,
    "sites[2]": 0,
    "sites[3]": 0,
    "rope_theta": 100000.0,
}
"""What a tag-82 file does not say: the published generation-2 model."""

WORD_LIMITS: dict[str, tuple[int, int]] = {
    "tensor_count": (1, 4096),
    "codebook_count": (28, 28),
    "kv_bits": (1, 32),
    "vocab_count": (1, 1 << 20),
    "d_model": (1, 8192),
    "head_count": (1, 128),
    "kv_head_count": (1, 128),
    "layer_count": (1, 64),
    "head_dim": (2, 512),
    "qk_head_dim": (2, 512),
    "v_head_dim": (1, 512),
    "max_seq_len": (1, 1 << 20),
    "lane_count": (1, 16),
    "qkv_conv_taps": (0, 16),
    "engram_slots": (1, 1 << 26),
    "engram_sub_dim": (1, 8192),
    "engram_table_count": (1, 64),
    "engram_conv_taps": (1, 16),
    "engram_dilation": (1, 16),
    "engram_seed_heads": (0, 1 << 16),
    "order_count": (1, 4),
}
"""Inclusive bounds (docs/formats/cact.md, rule 3); no size that follows from them comes near 64 bits."""
ORDER_LIMITS = (1, 16)
F32_MAX = float(np.finfo(np.float32).max)
"""The largest value of the header's only float."""
HEAD_DIMENSION_MAX = 4096
"""Largest probe, query or output count of a head."""

RECORD = struct.Struct("<BBH4IQQII")
"""dtype, ndim, zero, shape[4], offset, nbytes, group, bits: 44 bytes."""
RECORD_FIELD_BYTES = {
    **{"dtype": 0, "ndim": 1, "zero": 2, "shape": 4},
    **{"offset": 20, "nbytes": 28, "group": 36, "bits": 40},
}
"""Where each field stands in a record."""
ALIGNMENT_BYTES = 64
GROUP = 128
"""Weights per norm, and the size of the Hadamard rotation."""


class Kind(enum.IntEnum):
    """The `dtype` byte of a directory record."""

    FP16 = 1
    FP32 = 2
    CQ = 3
    RAW = 4


TERNARY_BITS = 5
"""The `bits` word that means three levels in two-bit crumbs."""
CQ_BITS = (1, 2, 3, 4, TERNARY_BITS)

CODEBOOK_SLICES = {2: slice(0, 4), 3: slice(4, 12), 4: slice(12, 28)}
"""Where the stored levels of each width stand among the 28 floats."""

CODEBOOKS = np.array(
    (
        *(-0.13317214, -0.03990209, 0.04003528, 0.13346045),
        *(-0.18926136, -0.11788499, -0.06614969, -0.021013461),
        *(0.022101032, 0.06678507, 0.118262075, 0.18982603),
        *(
            -0.23953155,
            -0.18070605,
            -0.14095794,
            -0.10901255,
            -0.081512965,
            -0.05652765,
            -0.03293915,
            -0.01011611,
        ),
        *(0.0127108, 0.035707917, 0.059458256, 0.08497702, 0.11274162),
        *(0.14469692, 0.184239, 0.2422737),
    ),
    dtype="<f4",
)
"""The 28 floats that upstream writes into every file; nine digits pin an f32 exactly."""


def align(offset_bytes: int) -> int:
    """The next multiple of 64 at or after `offset_bytes`."""
    return -(-offset_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def padded(width: int) -> int:
    """Codes per row of a CQ tensor with `width` columns: the next multiple of 128."""
    return -(-width // GROUP) * GROUP


def storage_bits(bits: int) -> int:
    """Bits per stored code for the `bits` word of a record (ternary takes two)."""
    return 2 if bits == TERNARY_BITS else bits
