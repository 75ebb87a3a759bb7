"""The frame of a patch: header, segments' fields and payload sizes, read without decoding a payload.

Owns: `read_patch_header`, `read_segments`. Does not know: how payloads are coded.
Source: docs/formats/patch.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from builder.delta import layout
from builder.delta.layout import SegmentKind
from builder.errors import PatchError, refusal

SPEC = "docs/formats/patch.md"


@dataclass(frozen=True)
class PatchHeader:
    """What a patch says of itself; hashes are lower-case hex."""

    version: int
    tag: int
    base_bytes: int
    target_bytes: int
    base_sha256: str
    target_sha256: str
    segment_count: int


@dataclass(frozen=True)
class Segment:
    """One segment's fields and where its payloads lie in the patch."""

    kind: SegmentKind
    coder: int
    base_offset: int
    target_offset: int
    target_bytes: int
    row_count: int
    group_count: int
    block_rows: int
    bits: int
    table_index: int
    is_guided: bool
    """A CQ segment whose first payload is side information; a seeded one is guided too."""
    rank: int
    """Of a guided CQ segment; else 0."""
    basis_rank: int
    """Of a seeded CQ segment; else 0."""
    field_bytes: int
    payloads: tuple[memoryview, ...]


def read_patch_header(patch: bytes | memoryview) -> PatchHeader:
    """The checked header.

    Raises `PatchError`: patch_truncated, patch_bad_magic, patch_bad_version, patch_bad_header.
    """
    if len(patch) < layout.HEADER.size:
        raise _bad("patch_truncated", "patch_bytes", len(patch), f"at least {layout.HEADER.size}", 0)
    fields = layout.HEADER.unpack_from(patch)
    magic, version, flags, tag, base_bytes, target_bytes, base_sha256, target_sha256, segment_count, check = (
        fields
    )
    if magic != layout.MAGIC:
        raise _bad("patch_bad_magic", "header.magic", magic.hex(), layout.MAGIC.hex(), 0)
    if version != layout.VERSION:
        raise _bad("patch_bad_version", "header.version", version, str(layout.VERSION), 8)
    wanted = hashlib.sha256(patch[: layout.HEADER_CHECKED_BYTES]).digest()[:4]
    if check != wanted:
        raise _bad("patch_bad_header", "header.check", check.hex(), wanted.hex(), layout.HEADER_CHECKED_BYTES)
    if flags:
        raise _bad("patch_bad_header", "header.flags", flags, "0", 10)
    hashes = base_sha256.hex(), target_sha256.hex()
    return PatchHeader(version, tag, base_bytes, target_bytes, *hashes, segment_count)


def read_segments(patch: bytes | memoryview, header: PatchHeader) -> Iterator[Segment]:
    """All segments in order.

    Raises `PatchError`: patch_truncated, patch_bad_segment, patch_bad_coder, patch_trailing_bytes.
    """
    cursor = _Cursor(memoryview(patch), layout.HEADER.size)
    base_offset = target_offset = 0
    for _ in range(header.segment_count):
        segment = _read_segment(cursor, base_offset, target_offset)
        yield segment
        target_offset += segment.target_bytes
        base_offset = segment.base_offset + (
            0 if segment.kind is SegmentKind.LITERAL else segment.target_bytes
        )
    cursor.take(layout.TRAILER_BYTES, "trailer")
    if cursor.offset != len(patch):
        raise _bad("patch_trailing_bytes", "patch_bytes", len(patch), str(cursor.offset), cursor.offset)


def _read_segment(cursor: _Cursor, base_offset: int, target_offset: int) -> Segment:
    start = cursor.offset
    fields = _take_fields(cursor)
    kind, coder = _take_kind(fields, start)
    base_skip, target_bytes = fields.number(), fields.number()
    row_count = group_count = block_rows = bits = table_index = rank = basis_rank = block_count = 0
    if kind is SegmentKind.CQ:
        row_count, group_count, block_rows = fields.word(), fields.word(), fields.word()
        _check_shape(row_count, group_count, block_rows, start)
        block_count = -(-row_count // block_rows)
    if kind in (SegmentKind.CQ, SegmentKind.TABLE):
        bits, table_index = fields.byte("segment.bits"), fields.byte("segment.table_index")
    is_guided = kind is SegmentKind.CQ and coder in layout.GUIDED_CODERS
    if is_guided:
        rank, _pre_shift = fields.byte("segment.rank"), fields.byte("segment.pre_shift")
        _check_rank("segment.rank", rank, group_count, start)
    if kind is SegmentKind.CQ and coder in layout.SEEDED_CODERS:
        basis_rank = fields.basis_rank()
        _check_rank("segment.basis_rank", basis_rank, group_count, start)
    if kind is SegmentKind.CQ and coder in layout.PREDICTED_CODERS:
        _boost = fields.word()
    if kind is SegmentKind.TABLE and coder == layout.CODER_GUIDED:
        fields.take(3, "noise, bucket_shift, floor")
    if kind is SegmentKind.TABLE and coder == layout.CODER_NARROWED:
        fields.take(4, "noise, bucket_shift, floor, width")
    fields.require_end()
    field_bytes = cursor.offset - start
    payloads = tuple(cursor.payload() for _ in range(_payload_count(kind, block_count, is_guided=is_guided)))
    return Segment(
        kind,
        coder,
        base_offset + base_skip,
        target_offset,
        target_bytes,
        *(row_count, group_count, block_rows, bits, table_index, is_guided, rank, basis_rank),
        *(field_bytes, payloads),
    )


def _check_shape(row_count: int, group_count: int, block_rows: int, start: int) -> None:
    groups_max = layout.ROW_CODES_MAX // layout.GROUP_CODES
    if not 1 <= group_count <= groups_max:
        raise _bad("patch_bad_segment", "segment.group_count", group_count, f"1 to {groups_max}", start)
    rows_max = layout.BLOCK_CODES_MAX // layout.GROUP_CODES // group_count
    if not row_count or not 1 <= block_rows <= rows_max:
        raise _bad("patch_bad_segment", "segment.block_rows", block_rows, f"1 to {rows_max}", start)


def _check_rank(field: str, rank: int, group_count: int, start: int) -> None:
    rank_max = min(layout.RANK_MAX, layout.Q_MAX // (group_count * layout.GROUP_CODES))
    if not 1 <= rank <= rank_max:
        raise _bad("patch_bad_segment", field, rank, f"1 to {rank_max}", start)


def _take_fields(cursor: _Cursor) -> _Fields:
    start = cursor.offset
    size = cursor.byte("segment.fields_size")
    if not 1 <= size <= layout.FIELDS_MAX:
        raise _bad("patch_bad_segment", "segment.fields_size", size, f"1 to {layout.FIELDS_MAX}", start)
    return _Fields(cursor.take(size, "segment.fields"), start)


def _take_kind(fields: _Fields, start: int) -> tuple[SegmentKind, int]:
    value = fields.byte("segment.kind")
    if value not in layout.CODERS:
        raise _bad("patch_bad_segment", "segment.kind", value, f"1 to {max(SegmentKind)}", start + 1)
    kind = SegmentKind(value)
    coder = fields.byte("segment.coder")
    known = layout.CODERS[kind]
    if coder not in known:
        allowed = " or ".join(map(str, known))
        raise _bad("patch_bad_coder", "segment.coder", coder, allowed, start + 2)
    return kind, coder


def _payload_count(kind: SegmentKind, block_count: int, *, is_guided: bool) -> int:
    if kind is SegmentKind.CQ:
        return block_count + int(is_guided)
    return 0 if kind is SegmentKind.COPY else 1


class _Cursor:
    def __init__(self, data: memoryview, offset: int) -> None:
        self.data = data
        self.offset = offset

    def take(self, count: int, field: str) -> memoryview:
        if count > len(self.data) - self.offset:
            left = len(self.data) - self.offset
            raise _bad("patch_truncated", field, f"{left} bytes", f"{count} bytes", self.offset)
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def byte(self, field: str) -> int:
        return self.take(1, field)[0]

    def payload(self) -> memoryview:
        size = int.from_bytes(self.take(4, "segment.payload_size"), "little")
        if size > layout.PAYLOAD_MAX:
            raise _bad(
                "patch_bad_segment",
                "segment.payload_size",
                size,
                f"at most {layout.PAYLOAD_MAX}",
                self.offset,
            )
        return self.take(size, "segment.payload")


class _Fields(_Cursor):
    """The fields of one segment, which fill their size to the last byte."""

    def __init__(self, data: memoryview, start: int) -> None:
        super().__init__(data, 0)
        self._start = start

    def take(self, count: int, field: str) -> memoryview:
        if count > len(self.data) - self.offset:
            raise self._bad_size(f"more: {field} is missing")
        return super().take(count, field)

    def number(self) -> int:
        """LEB128, at most nine bytes, without a superfluous zero at the end."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self.byte("a number")
            value |= (byte & 127) << shift
            if byte < 128:
                if shift and not byte:
                    break
                return value
        raise _bad("patch_bad_segment", "segment.fields", "no shortest number", "one", self._start)

    def word(self) -> int:
        """A number of 32 bits."""
        value = self.number()
        if value > layout.WORD_MAX:
            raise _bad(
                "patch_bad_segment", "segment.fields", value, f"at most {layout.WORD_MAX}", self._start
            )
        return value

    def basis_rank(self) -> int:
        """The rank of a seeded segment's basis, past what only the rebuild needs."""
        self.word()
        self.take(2, "group, layer")
        self.word()
        return self.byte("basis_rank")

    def require_end(self) -> None:
        if self.offset != len(self.data):
            raise self._bad_size(str(self.offset))

    def _bad_size(self, allowed: str) -> PatchError:
        return _bad("patch_bad_segment", "segment.fields_size", len(self.data), allowed, self._start)


def _bad(code: str, field: str, found: object, allowed: str, offset: int) -> PatchError:
    return PatchError(
        refusal("patch", field, found=found, allowed=allowed, offset=offset, spec=SPEC), code=code
    )
