"""The directory: records by place, each checked against what its place asks for.

Owns: rules 6 to 8 of docs/formats/cact.md (records, order, offsets and gaps) and `Record`.
Does not know: the numbers inside tensors (values.py), the tokenizer's blob (tokenizer.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from builder.cact import layout
from builder.cact.header import Header
from builder.cact.layout import Kind
from builder.cact.order import HEAD_NAMES, Slot, canonical_order
from builder.cact.rules import broken, cut_off
from builder.errors import ContainerError


@dataclass(frozen=True)
class Record:
    """One tensor of the directory, with the name that its place gives it."""

    index: int
    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    group: int
    bits: int

    @property
    def rows(self) -> int:
        """Rows of a CQ tensor."""
        return self.shape[0]

    @property
    def code_columns(self) -> int:
        """Codes per row of a CQ tensor: its columns, padded to a multiple of 128."""
        return layout.padded(self.shape[1])

    @property
    def code_bytes(self) -> int:
        """Bytes of a CQ tensor's packed codes; its norms (fp16) follow and end the blob."""
        return self.rows * self.code_columns * layout.storage_bits(self.bits) // 8


def read_directory(data: memoryview, header: Header, subject: str) -> tuple[Record, ...]:
    """All records in file order, once every one of them, every gap and the file's end have been checked.

    Raises `ContainerError`: cact_truncated, cact_bad_record, cact_unsupported, cact_bad_shape,
    cact_bad_offset, cact_bad_padding, cact_bad_header, cact_trailing_bytes, cact_bad_value (head manifest).
    """
    return _Walk(data, header, subject).records()


class _Walk:
    """One pass over the directory. It is the `Directory` that the canonical order looks ahead in."""

    def __init__(self, data: memoryview, header: Header, subject: str) -> None:
        self._data = data
        self._header = header
        self._subject = subject
        self._start = header.size_bytes + 4 * len(layout.CODEBOOKS)
        self._end = self._start + header.tensor_count * layout.RECORD.size
        if len(data) < self._end:
            raise cut_off(6, subject, "directory", byte_count=len(data), needed=self._end)
        self._words = list(layout.RECORD.iter_unpack(data[self._start : self._end]))
        self._done: list[Record] = []

    def kind(self, index: int) -> int:
        return self._words[index][0] if index < len(self._words) else 0

    def shape(self, index: int) -> tuple[int, ...]:
        return self._words[index][3:7] if index < len(self._words) else (0, 0, 0, 0)

    def manifest(self, index: int) -> tuple[int, ...]:
        record = self._done[index]
        codes = np.frombuffer(self._data, "<f2", count=record.shape[0], offset=record.offset_bytes).tolist()
        known = HEAD_NAMES[self._header.generation]
        if not set(codes) <= set(known) or sorted(set(codes)) != codes:
            allowed = f"ascending codes out of {list(known)}"
            raise broken(
                9,
                "cact_bad_value",
                self._subject,
                record.name,
                found=codes,
                allowed=allowed,
                offset=record.offset_bytes,
            )
        return tuple(int(code) for code in codes)

    def records(self) -> tuple[Record, ...]:
        count = self._header.tensor_count
        free = self._end
        for slot in canonical_order(self._header, self):
            if len(self._done) == count:
                raise self._wrong_count(f"more, since {slot.name} is missing")
            record = self._checked(slot, due=layout.align(free))
            self._check_gap(free, record)
            self._done.append(record)
            free = record.offset_bytes + record.size_bytes
        if len(self._done) != count:
            raise self._wrong_count(f"{len(self._done)} for this geometry and these heads")
        if free != len(self._data):
            raise broken(
                8,
                "cact_trailing_bytes",
                self._subject,
                "file",
                found=f"{len(self._data)} bytes long",
                allowed=f"{free}, where the last tensor ends",
                offset=free,
            )
        return tuple(self._done)

    def _checked(self, slot: Slot, *, due: int) -> Record:
        index = len(self._done)
        dtype, ndim, reserved, *rest = self._words[index]
        shape, (offset, size, group, bits) = tuple(rest[:4]), rest[4:]
        if dtype == Kind.FP32 and slot.kind is Kind.RAW:
            raise self._bad(
                slot, 6, "cact_unsupported", "dtype", dtype, "4 (RAW); audio archives are not read"
            )
        if dtype != slot.kind:
            raise self._bad(slot, 6, "cact_bad_record", "dtype", dtype, f"{slot.kind:d} ({slot.kind.name})")
        if reserved:
            raise self._bad(slot, 6, "cact_bad_record", "zero", reserved, "0")
        self._check_coding(slot, group, bits)
        wanted = (*slot.shape, *(0,) * (4 - len(slot.shape)))
        if ndim != len(slot.shape):
            raise self._bad(slot, 7, "cact_bad_shape", "ndim", ndim, str(len(slot.shape)))
        if shape != wanted:
            raise self._bad(slot, 7, "cact_bad_shape", "shape", list(shape), f"{list(wanted)}")
        record = Record(index, slot.name, slot.kind, slot.shape, offset, size, group, bits)
        if slot.kind is not Kind.RAW and size != (exact := _blob_bytes(record)):
            raise self._bad(slot, 8, "cact_bad_offset", "nbytes", size, f"{exact}, from shape and dtype")
        if offset != due:
            raise self._bad(
                slot, 8, "cact_bad_offset", "offset", offset, f"{due}, after the tensor before it"
            )
        if size > len(self._data) - offset:
            raise cut_off(8, self._subject, slot.name, byte_count=len(self._data), needed=offset + size)
        return record

    def _check_coding(self, slot: Slot, group: int, bits: int) -> None:
        if slot.kind is not Kind.CQ:
            if group or bits:
                raise self._bad(
                    slot, 6, "cact_bad_record", "group", [group, bits], "0 and 0 bits, not being CQ"
                )
        elif bits not in layout.CQ_BITS:
            raise self._bad(slot, 6, "cact_bad_record", "bits", bits, "1 to 4, or 5 for ternary")
        elif group != layout.GROUP:
            raise self._bad(slot, 6, "cact_unsupported", "group", group, str(layout.GROUP))

    def _check_gap(self, start: int, record: Record) -> None:
        gap = bytes(self._data[start : record.offset_bytes])
        if rest := gap.lstrip(b"\0"):
            field = f"gap before {record.name}"
            at = record.offset_bytes - len(rest)
            raise broken(8, "cact_bad_padding", self._subject, field, found=rest[0], allowed="0", offset=at)

    def _bad(
        self, slot: Slot, rule: int, code: str, field: str, found: object, allowed: str
    ) -> ContainerError:
        index = len(self._done)
        where = f"record {index} ({slot.name}).{field}"
        offset = self._start + index * layout.RECORD.size + layout.RECORD_FIELD_BYTES[field]
        return broken(rule, code, self._subject, where, found=found, allowed=allowed, offset=offset)

    def _wrong_count(self, allowed: str) -> ContainerError:
        field, found = "header.tensor_count", self._header.tensor_count
        return broken(7, "cact_bad_header", self._subject, field, found=found, allowed=allowed, offset=4)


def _blob_bytes(record: Record) -> int:
    """Bytes that the shape asks for."""
    if record.kind is Kind.CQ:
        return record.code_bytes + record.rows * record.code_columns // layout.GROUP * 2
    return math.prod(record.shape) * (2 if record.kind is Kind.FP16 else 4)
