"""The constants of docs/formats/patch.md that Python needs to look into a patch.

Owns: header, segment kinds and their coders, limits. Does not know: how payloads are coded. A test compares
them with `engine/src/patch_format.h`.
"""

from __future__ import annotations

import enum
import struct

MAGIC = b"\x89SGP\r\n\x1a\n"
VERSION = 1
HEADER = struct.Struct("<8sHHIQQ32s32sI4s")
"""magic, version, flags, container tag, base bytes, target bytes, both SHA-256, segment count, check."""
HEADER_CHECKED_BYTES = 100
TRAILER_BYTES = 8
FIELDS_MAX = 64
PAYLOAD_MAX = 256 * 1024
GROUP_CODES = 128
ROW_CODES_MAX = 16384
BLOCK_CODES_MAX = 512 * 1024
RANK_MAX = 32
Q_MAX = 65536
"""Rank times codes of a row."""
WORD_MAX = 2**32 - 1
CODER_GUIDED = 2
CODER_SEEDED = 3
CODER_NARROWED = 3
"""Of a table; the others are a CQ segment's, and a computed table shares its number with guided codes."""
CODER_PREDICTED = 4
CODER_PREDICTED_SEEDED = 5
SEEDED_CODERS = (CODER_SEEDED, CODER_PREDICTED_SEEDED)
PREDICTED_CODERS = (CODER_PREDICTED, CODER_PREDICTED_SEEDED)
"""Of a CQ segment: the shift alone says the codes."""
GUIDED_CODERS = (CODER_GUIDED, CODER_SEEDED, *PREDICTED_CODERS)
"""Of a CQ segment: its first payload is side information."""


class SegmentKind(enum.IntEnum):
    """What a segment's target bytes come from."""

    COPY = 1
    LITERAL = 2
    WORDS = 3
    HALVES = 4
    CQ = 5
    TABLE = 6


CODERS = {
    SegmentKind.COPY: (0,),
    SegmentKind.LITERAL: (0, 1),
    SegmentKind.WORDS: (1,),
    SegmentKind.HALVES: (1,),
    SegmentKind.CQ: (1, *GUIDED_CODERS),
    SegmentKind.TABLE: (1, CODER_GUIDED, CODER_NARROWED),
}
"""The coders of each kind."""
