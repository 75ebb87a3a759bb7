"""Files that must be refused: one per way of breaking docs/formats/cact.md, each with its code.

The Python reader and the engine are both held to this list.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from builder.cact import layout
from builder.cact.reader import Record, read_container
from tests.cact.samples import GOLDEN, tiny_tokenizer

GEN_3 = (GOLDEN / "tiny84.cact").read_bytes()
GEN_2 = (GOLDEN / "tiny83.cact").read_bytes()
WIDTHS = (GOLDEN / "tiny84_widths.cact").read_bytes()
RECORDS = {data: read_container(data) for data in (GEN_3, GEN_2, WIDTHS)}
WORDS = {name: 4 * index for index, name in enumerate(layout.HEADER_FIELDS[layout.TAG_84])}
WORDS_83 = {name: 4 * index for index, name in enumerate(layout.HEADER_FIELDS[layout.TAG_83])}
BOOKS = 196


@dataclass(frozen=True)
class Hostile:
    """A named defect, the file that has it, and the code that a reader must give."""

    name: str
    code: str
    data: bytes


def patched(data: bytes, offset: int, replacement: bytes) -> bytes:
    return data[:offset] + replacement + data[offset + len(replacement) :]


def word(name: str, value: int, data: bytes = GEN_3, words: dict[str, int] = WORDS) -> bytes:
    """The file with one header word changed."""
    return patched(data, words[name], struct.pack("<I", value))


def record_field(name: str, field: str, value: bytes, data: bytes = GEN_3) -> bytes:
    """The file with one field of a tensor's record changed."""
    container = RECORDS[data]
    start = container.header.size_bytes + 4 * len(layout.CODEBOOKS)
    at = start + container.record(name).index * layout.RECORD.size + layout.RECORD_FIELD_BYTES[field]
    return patched(data, at, value)


def content(name: str, offset: int, value: bytes, data: bytes = GEN_3) -> bytes:
    """The file with some bytes of a tensor changed; a negative offset counts from its end."""
    record: Record = RECORDS[data].record(name)
    at = record.offset_bytes + (offset if offset >= 0 else record.size_bytes + offset)
    return patched(data, at, value)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def shifted_offset(name: str, by: int) -> bytes:
    return record_field(name, "offset", u64(RECORDS[GEN_3].record(name).offset_bytes + by))


NAN16, INF16 = b"\x00\x7e", b"\x00\x7c"
TRUNCATED, HEADER, BOOK = "cact_truncated", "cact_bad_header", "cact_bad_codebook"
RECORD, OFFSET, SHAPE = "cact_bad_record", "cact_bad_offset", "cact_bad_shape"
PADDING, TRAILING, TOKENIZER = "cact_bad_padding", "cact_trailing_bytes", "cact_bad_tokenizer"
VALUE, UNSUPPORTED, TAG = "cact_bad_value", "cact_unsupported", "cact_bad_tag"

_LIMITS: list[tuple[str, int]] = [
    *(("tensor_count", 0), ("tensor_count", 4097), ("codebook_count", 27), ("codebook_count", 2**32 - 1)),
    *(("kv_bits", 0), ("kv_bits", 33), ("vocab_count", 0), ("vocab_count", 2**20 + 1), ("d_model", 0)),
    *(("d_model", 8193), ("head_count", 0), ("kv_head_count", 0), ("layer_count", 0), ("layer_count", 65)),
    *(("qk_head_dim", 0), ("qk_head_dim", 514), ("v_head_dim", 0), ("max_seq_len", 0), ("lane_count", 17)),
    *(("qkv_conv_taps", 17), ("engram_slots", 0), ("engram_slots", 2**26 + 1), ("engram_sub_dim", 0)),
    *(("engram_table_count", 0), ("engram_table_count", 65), ("engram_conv_taps", 0), ("order_count", 0)),
    *(("engram_dilation", 17), ("engram_seed_heads", 2**16 + 1), ("order_count", 5), ("rope_theta", 0)),
    *(("rope_theta", 0x7F800000), ("rope_theta", 0x7FC00000), ("rope_theta", 0xC61C4000)),
]
_RELATIONS: list[tuple[str, int]] = [
    *(("kv_head_count", 3), ("qk_head_dim", 3), ("hada_n", 16), ("hada_n", 0), ("out_vocab_count", 25)),
    *(("engram_table_count", 3), ("orders[0]", 0), ("orders[1]", 17), ("orders[2]", 1), ("site_count", 17)),
    *(("sites[0]", 2), ("site_count", 2), ("sites[1]", 1), ("sites[15]", 7)),
]
_GEN_2_WORDS: list[tuple[str, int]] = [
    *(("head_dim", 5), ("site_count", 5), ("sites[1]", 1), ("hada_n", 512), ("layer_count", 2**32 - 1)),
]


def hostile_files() -> list[Hostile]:
    """Every case, named after its defect."""
    cases = [
        ("empty file", TRUNCATED, b""),
        ("three bytes", TRUNCATED, GEN_3[:3]),
        ("tag of a later generation", TAG, word("tag", 0x05E12A85)),
        ("zip archive", TAG, b"PK\x03\x04" + GEN_3[4:]),
        ("tag alone", TRUNCATED, GEN_3[:4]),
        ("header without its last byte", TRUNCATED, GEN_3[:195]),
        ("generation 2 header without its last byte", TRUNCATED, GEN_2[:119]),
        ("tag 82 header without its last byte", TRUNCATED, word("tag", layout.TAG_82)[:19]),
        *((f"header word {name} is {value}", HEADER, word(name, value)) for name, value in _LIMITS),
        *((f"header word {name} is {value}", HEADER, word(name, value)) for name, value in _RELATIONS),
        *(
            (f"generation 2 word {name} is {value}", HEADER, word(name, value, GEN_2, WORDS_83))
            for name, value in _GEN_2_WORDS
        ),
        ("two engram sites in one layer", HEADER, patched(word("site_count", 2), WORDS["sites[1]"], u32(1))),
        ("codebooks cut off", TRUNCATED, GEN_3[: BOOKS + 111]),
        ("codebook level that is no number", BOOK, patched(GEN_3, BOOKS + 8, b"\0\0\xc0\x7f")),
        ("infinite codebook level", BOOK, patched(GEN_3, BOOKS + 108, b"\0\0\x80\x7f")),
        ("codebook with two equal levels", BOOK, patched(GEN_3, BOOKS + 20, GEN_3[BOOKS + 16 : BOOKS + 20])),
        ("codebook that descends", BOOK, patched(GEN_3, BOOKS + 60, b"\0\0\x80\xbf")),
        ("directory without its last byte", TRUNCATED, GEN_3[: BOOKS + 112 + 92 * 44 - 1]),
        ("more tensors than the file can hold", TRUNCATED, word("tensor_count", 4096)),
        *_record_cases(),
        *_place_cases(),
        *_value_cases(),
        *_tokenizer_cases(),
    ]
    return [Hostile(*case) for case in cases]


def _record_cases() -> list[tuple[str, str, bytes]]:
    q = "layers.0.q_proj"
    return [
        ("fp16 where codes belong", RECORD, record_field(q, "dtype", b"\x01")),
        ("codes where fp16 belongs", RECORD, record_field("final_norm", "dtype", b"\x03")),
        ("unknown dtype", RECORD, record_field(q, "dtype", b"\x05")),
        ("tokenizer where a tensor belongs", RECORD, record_field("hada_p1", "dtype", b"\x04")),
        ("reserved word set", RECORD, record_field(q, "zero", b"\x01\x00")),
        ("width of 0 bits", RECORD, record_field(q, "bits", u32(0))),
        ("width of 6 bits", RECORD, record_field(q, "bits", u32(6))),
        ("width of 2 to the 32 minus 1 bits", RECORD, record_field(q, "bits", u32(2**32 - 1))),
        ("fp16 with a width", RECORD, record_field("final_norm", "bits", u32(4))),
        ("fp16 with a group", RECORD, record_field("final_norm", "group", u32(128))),
        ("tokenizer with a group", RECORD, record_field("tokenizer", "group", u32(128))),
        ("group of 64", UNSUPPORTED, record_field(q, "group", u32(64))),
        ("group of 0", UNSUPPORTED, record_field(q, "group", u32(0))),
        ("audio archive", UNSUPPORTED, record_field("tokenizer", "dtype", b"\x02")),
        ("one axis too many", SHAPE, record_field(q, "ndim", b"\x03")),
        ("255 axes", SHAPE, record_field(q, "ndim", b"\xff")),
        ("tokenizer with an axis", SHAPE, record_field("tokenizer", "ndim", b"\x01")),
        ("one row too many", SHAPE, record_field(q, "shape", u32(5))),
        ("rows and columns swapped", SHAPE, record_field(q, "shape", u32(8, 4))),
        ("unused shape word set", SHAPE, record_field(q, "shape", u32(4, 8, 1))),
        ("shape whose product overflows", SHAPE, record_field(q, "shape", u32(2**31, 2**31))),
        (
            "probes that are no multiple of the rows",
            SHAPE,
            record_field("heads.router.probes", "shape", u32(11)),
        ),
        ("router with two outputs", SHAPE, record_field("heads.router.proj", "shape", u32(2))),
        ("head with 4097 queries", SHAPE, record_field("heads.embedding.query", "shape", u32(4097))),
        ("manifest with two axes", SHAPE, record_field("heads.manifest", "ndim", b"\x02")),
        ("manifest of four heads", SHAPE, record_field("heads.manifest", "shape", u32(4))),
        ("geometry with another vocabulary", SHAPE, word("vocab_count", 25)),
        ("geometry without convolution taps", SHAPE, word("qkv_conv_taps", 0)),
        ("geometry with more lanes", SHAPE, word("lane_count", 3, GEN_2, WORDS_83)),
        ("tokenizer left out of the count", TRAILING, _without_last_record(GEN_3)),
        ("tensors missing at the end", HEADER, _shorter(GEN_3, 90)),
        ("nothing after the embedding", HEADER, _shorter(GEN_3, 1)),
        ("a second tokenizer", HEADER, _second_tokenizer(GEN_3)),
    ]


def _place_cases() -> list[tuple[str, str, bytes]]:
    q = "layers.0.q_proj"
    size = RECORDS[GEN_3].record(q).size_bytes
    last = RECORDS[GEN_3].record("tokenizer")
    return [
        ("size one byte short", OFFSET, record_field(q, "nbytes", u64(size - 1))),
        ("size one byte long", OFFSET, record_field(q, "nbytes", u64(size + 1))),
        ("size of 2 to the 64 minus 1", OFFSET, record_field(q, "nbytes", u64(2**64 - 1))),
        ("size for another width", OFFSET, record_field(q, "bits", u32(2))),
        ("tensor that overlaps the one before", OFFSET, shifted_offset(q, -64)),
        ("tensor after a hole", OFFSET, shifted_offset(q, 64)),
        ("tensor off its alignment", OFFSET, shifted_offset(q, 1)),
        ("first tensor over the directory", OFFSET, record_field("embedding", "offset", u64(0))),
        ("offset near 2 to the 64", OFFSET, record_field(q, "offset", u64(2**64 - 64))),
        (
            "tokenizer of 2 to the 64 minus 1 bytes",
            TRUNCATED,
            record_field("tokenizer", "nbytes", u64(2**64 - 1)),
        ),
        (
            "tokenizer one byte beyond the end",
            TRUNCATED,
            record_field("tokenizer", "nbytes", u64(last.size_bytes + 1)),
        ),
        ("file without its last byte", TRUNCATED, GEN_3[:-1]),
        ("file cut in the middle", TRUNCATED, GEN_3[: len(GEN_3) // 2]),
        ("one byte after the last tensor", TRAILING, GEN_3 + b"\0"),
        (
            "tokenizer that ends early",
            TRAILING,
            record_field("tokenizer", "nbytes", u64(last.size_bytes - 1)),
        ),
        ("gap that is not zero", PADDING, patched(GEN_3, _end(q) + 1, b"\x01")),
        ("gap after the directory that is not zero", PADDING, patched(GEN_3, _first_gap(), b"\xff")),
    ]


def _value_cases() -> list[tuple[str, str, bytes]]:
    ternary = next(r.name for r in RECORDS[WIDTHS].records if r.bits == layout.TERNARY_BITS)
    seven = struct.pack("<f", 7.0)
    return [
        ("norm that is no number", VALUE, content("layers.0.q_proj", -2, NAN16)),
        ("infinite norm", VALUE, content("embedding", -48, INF16)),
        ("negative infinite norm", VALUE, content("embedding", -48, b"\x00\xfc")),
        ("half that is no number", VALUE, content("final_norm", 2, NAN16)),
        ("infinite half", VALUE, content("heads.router.calibration", 4, INF16)),
        ("unused ternary code", VALUE, content(ternary, 1, b"\x08", WIDTHS)),
        ("unused ternary code in the padding of a row", VALUE, content(ternary, 31, b"\x80", WIDTHS)),
        ("permutation with one integer twice", VALUE, _twice("hada_p1")),
        ("permutation with a fraction", VALUE, content("hada_p2", 0, struct.pack("<f", 1.5))),
        ("permutation with a number too large", VALUE, content("hada_p2", 28, struct.pack("<f", 8.0))),
        ("permutation with a negative number", VALUE, _negative("hada_p2")),
        ("permutation that is no number", VALUE, content("hada_p1", 4, b"\0\0\xc0\x7f")),
        ("head that nobody knows", VALUE, content("heads.manifest", 4, np.float16(4).tobytes())),
        ("head code with a fraction", VALUE, content("heads.manifest", 0, np.float16(1.5).tobytes())),
        ("heads in the wrong order", VALUE, content("heads.manifest", 0, np.array([2, 1], "<f2").tobytes())),
        ("the same head twice", VALUE, content("heads.manifest", 2, np.array([1], "<f2").tobytes())),
        ("permutation over its end", VALUE, content("hada_p1", 0, seven * 2)),
    ]


def _tokenizer_cases() -> list[tuple[str, str, bytes]]:
    return [
        ("tokenizer of 23 bytes", TOKENIZER, _short_tokenizer(23)),
        ("tokenizer of no bytes", TOKENIZER, _short_tokenizer(0)),
        ("tokenizer with more pieces than the vocabulary", TOKENIZER, content("tokenizer", 0, u32(25))),
        ("tokenizer with 2 to the 32 minus 1 pieces", TOKENIZER, content("tokenizer", 0, u32(2**32 - 1))),
        ("end of text beyond the pieces", TOKENIZER, content("tokenizer", 8, u32(12))),
        ("piece that is not utf-8", TOKENIZER, content("tokenizer", 31, b"\xff")),
        ("piece longer than the file", TOKENIZER, content("tokenizer", 29, b"\xff\xff")),
        ("piece of a type that does not exist", TOKENIZER, content("tokenizer", 28, b"\x05")),
        ("byte fallback without byte pieces", TOKENIZER, content("tokenizer", 21, b"\x01")),
        (
            "two pieces with one text",
            TOKENIZER,
            content("tokenizer", tiny_tokenizer().index(b"\x01\0b") + 2, b"a"),
        ),
    ]


def _end(name: str) -> int:
    record = RECORDS[GEN_3].record(name)
    return record.offset_bytes + record.size_bytes


def _first_gap() -> int:
    return BOOKS + 112 + RECORDS[GEN_3].header.tensor_count * layout.RECORD.size


def _twice(name: str) -> bytes:
    at = RECORDS[GEN_3].record(name).offset_bytes
    return patched(GEN_3, at, GEN_3[at + 4 : at + 8])


def _negative(name: str) -> bytes:
    """-1 in the place of 0."""
    zero = RECORDS[GEN_3].tensor(name).tolist().index(0.0)
    return content(name, 4 * zero, struct.pack("<f", -1.0))


def _moved(data: bytes, count: int, records: list[bytes]) -> bytes:
    """The file with other records in its directory; blobs and offsets follow the directory's new end."""
    old_end = BOOKS + 112 + RECORDS[data].header.tensor_count * layout.RECORD.size
    new_end = BOOKS + 112 + len(records) * layout.RECORD.size
    shift = layout.align(new_end) - layout.align(old_end)
    directory = b"".join(
        record[:20] + u64(struct.unpack_from("<Q", record, 20)[0] + shift) + record[28:] for record in records
    )
    head = word("tensor_count", count, data)[: BOOKS + 112]
    gap = bytes(layout.align(new_end) - new_end)
    return head + directory + gap + data[layout.align(old_end) :]


def _records(data: bytes) -> list[bytes]:
    start = BOOKS + 112
    return [
        data[start + i * layout.RECORD.size :][: layout.RECORD.size]
        for i in range(RECORDS[data].header.tensor_count)
    ]


def _without_last_record(data: bytes) -> bytes:
    records = _records(data)[:-1]
    return _moved(data, len(records), records)


def _shorter(data: bytes, count: int) -> bytes:
    return _moved(data, count, _records(data)[:count])


def _second_tokenizer(data: bytes) -> bytes:
    records = _records(data)
    tokenizer = RECORDS[data].record("tokenizer")
    place = layout.align(tokenizer.offset_bytes + tokenizer.size_bytes)
    again = records[-1][:20] + u64(place) + records[-1][28:]
    moved = _moved(data, len(records) + 1, [*records, again])
    blob = data[tokenizer.offset_bytes :]
    return moved + bytes(-len(moved) % layout.ALIGNMENT_BYTES) + blob


def _short_tokenizer(size: int) -> bytes:
    record = RECORDS[GEN_3].record("tokenizer")
    return record_field("tokenizer", "nbytes", u64(size))[: record.offset_bytes + size]
