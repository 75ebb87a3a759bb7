"""What the rows of guided CQ segments spend: P and norms share one stream, which only reading it can divide.

Owns: `RowCosts`, which follows a patch's guided segments in order, as their states live from the first to the
last. Does not know: codes, norms or the base; neither P nor norm differences depend on them.
Source: docs/formats/patch.md, "Guided codes".
"""

from __future__ import annotations

from builder.delta.frame import SPEC, Segment
from builder.delta.layout import GROUP_CODES
from builder.delta.range_decoder import RangeDecoder, number_model, side_model, states
from builder.errors import PatchError, refusal

SIDE_CLASSES = 32
CLASS_NONE = 31
NORM_CONTEXTS = 10
# Mean size of an entry of a class in 1/16: 16 * 0.8 * 2^(class / 3) / 4, as `sg_side_typical` has it.
TYPICAL = (
    *(3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 41, 51, 64, 81, 102),
    *(128, 161, 203, 256, 323, 406, 512, 645, 813, 1024, 1290, 1625, 2048, 2580, 3251, 4096),
)


class RowCosts:
    """Call `p_bytes` for every guided segment of a patch, in order."""

    def __init__(self) -> None:
        self._gain_exponent, self._gain_mantissa = states(16), states(8)
        self._side_class = states(2 * SIDE_CLASSES)
        self._mix = number_model()
        self._q = [side_model() for _ in range(SIDE_CLASSES)]
        self._p = [[side_model() for _ in range(3)] for _ in range(SIDE_CLASSES)]
        self._norm = [number_model() for _ in range(NORM_CONTEXTS)]

    def p_bytes(self, segment: Segment) -> int:
        """Bytes of the segment's row streams that are P; the rest are norms.

        Raises `PatchError` (patch_corrupt) where a stream says more than it holds.
        """
        side, *blocks = segment.payloads
        classes = self._read_side(segment, side)
        rows_left, bits = segment.row_count, 0.0
        for block in blocks:
            rows = min(rows_left, segment.block_rows)
            stream = block[4 : 4 + int.from_bytes(block[:4], "little")]
            bits += self._read_rows(stream, rows, segment.group_count, classes)
            rows_left -= rows
        return min(round(bits / 8), sum(int.from_bytes(block[:4], "little") for block in blocks))

    def _read_side(self, segment: Segment, payload: memoryview) -> list[int]:
        """The classes of P's components."""
        decoder, classes = RangeDecoder(payload), []
        for _ in range(segment.rank):
            decoder.tree(self._gain_exponent, 4)
            decoder.tree(self._gain_mantissa, 3)
            q_class = decoder.tree(self._side_class, 5)
            classes.append(decoder.tree(self._side_class, 5))
            for _ in range(segment.basis_rank):
                decoder.signed(self._mix)
            entry_count = 0 if q_class == CLASS_NONE else segment.group_count * GROUP_CODES
            for _ in range(entry_count):
                decoder.side(self._q[q_class])
            _require(not decoder.is_overrun, "side")
        _require(decoder.is_spent, "side")
        return classes

    def _read_rows(self, stream: memoryview, row_count: int, group_count: int, classes: list[int]) -> float:
        """Bits of P in one block."""
        decoder, before, p_bits = RangeDecoder(stream), 0, 0.0
        for _ in range(row_count):
            start = decoder.used_bits
            self._read_p(decoder, classes)
            p_bits += decoder.used_bits - start
            for _ in range(group_count):
                before = decoder.signed(self._norm[min(abs(before).bit_length(), NORM_CONTEXTS - 1)])
            _require(not decoder.is_overrun, "block")
        _require(decoder.is_spent, "block")
        return p_bits

    def _read_p(self, decoder: RangeDecoder, classes: list[int]) -> None:
        sizes = typical = 0
        for p_class in classes:
            context = 0 if sizes * 24 < typical else 2 if sizes * 12 > typical else 1
            sizes += abs(decoder.side(self._p[p_class][context]))
            typical += TYPICAL[p_class]


def _require(is_sound: bool, field: str) -> None:
    if not is_sound:
        message = refusal("patch", field, found="not what its fields say", allowed="spent exactly", spec=SPEC)
        raise PatchError(message, code="patch_corrupt")
