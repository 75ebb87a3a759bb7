"""The numbers inside the tensors: rule 9 of docs/formats/cact.md.

Owns: finite norms and floats, used ternary codes, permutations. Does not know: the order of tensors, what
they mean. Each blob is read once, in place.
"""

from __future__ import annotations

import numpy as np

from builder.cact import layout
from builder.cact.directory import Record
from builder.cact.layout import Kind
from builder.cact.rules import broken

HALF_EXPONENT = 0x7C00
"""The exponent bits of an fp16 word; all of them set means infinite or not a number."""


def check_values(record: Record, data: memoryview, subject: str) -> None:
    """Refuse (cact_bad_value) a tensor whose numbers cannot be meant."""
    blob = data[record.offset_bytes : record.offset_bytes + record.size_bytes]
    if record.kind is Kind.CQ:
        if record.bits == layout.TERNARY_BITS:
            _check_crumbs(record, blob[: record.code_bytes], subject)
        _check_finite(record, blob, record.code_bytes, subject)
    elif record.kind is Kind.FP16:
        _check_finite(record, blob, 0, subject)
    elif record.kind is Kind.FP32:
        _check_permutation(record, blob, subject)


def _check_finite(record: Record, blob: memoryview, start: int, subject: str) -> None:
    words = np.frombuffer(blob[start:], "<u2")
    bad = np.flatnonzero((words & HALF_EXPONENT) == HALF_EXPONENT)
    if bad.size:
        raise broken(
            9,
            "cact_bad_value",
            subject,
            f"{record.name} norm" if record.kind is Kind.CQ else record.name,
            found="infinite or not a number",
            allowed="finite",
            offset=record.offset_bytes + start + 2 * int(bad[0]),
        )


def _check_crumbs(record: Record, packed: memoryview, subject: str) -> None:
    words = np.frombuffer(packed, np.uint8)
    # A crumb is 2 when its high bit is set and its low bit is not.
    bad = np.flatnonzero((words & 0xAA) & ~((words & 0x55) << 1))
    if bad.size:
        raise broken(
            9,
            "cact_bad_value",
            subject,
            f"{record.name} code",
            found=2,
            allowed="0, 1 or 3 in a ternary tensor",
            offset=record.offset_bytes + int(bad[0]),
        )


def _check_permutation(record: Record, blob: memoryview, subject: str) -> None:
    values = np.frombuffer(blob, "<f4")
    if not np.array_equal(np.sort(values), np.arange(len(values))):
        raise broken(
            9,
            "cact_bad_value",
            subject,
            record.name,
            found="no permutation",
            allowed=f"each integer below {len(values)} once",
            offset=record.offset_bytes,
        )
