"""Reading a `.cact` file: the whole file is checked first, then tensors are decoded when they are asked for.

Owns: `Container` and `read_container`, which applies the rules of docs/formats/cact.md in their order.
Does not know: what tensors mean, how files are made (writer.py), how they are printed (show_command.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from builder.cact import codes as cq
from builder.cact import layout
from builder.cact.directory import Record, read_directory
from builder.cact.header import Header, parse_header
from builder.cact.layout import Kind
from builder.cact.rules import broken, cut_off
from builder.cact.tokenizer import parse_tokenizer
from builder.cact.values import check_values
from builder.errors import ContainerError, UsageError
from builder.files import read_regular


class Container:
    """A checked `.cact` file. Tensors are views into `data` until they are decoded."""

    def __init__(self, subject: str, data: memoryview, header: Header, records: tuple[Record, ...]) -> None:
        self.subject = subject
        self.data = data
        self.header = header
        self.records = records
        self._by_name = {record.name: record for record in records}
        self.codebooks: npt.NDArray[np.float32] = np.frombuffer(
            data, "<f4", count=len(layout.CODEBOOKS), offset=header.size_bytes
        )
        """(28,) f32: the levels of 2, 3 and 4 bits, as they stand in the file."""

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def record(self, name: str) -> Record:
        """The record of a tensor. Raises `UsageError` (unknown_tensor) where the file has none such."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UsageError(f"{self.subject}: has no tensor {name!r}", code="unknown_tensor") from None

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes as they stand in the file."""
        record = self.record(name)
        return self.data[record.offset_bytes : record.offset_bytes + record.size_bytes]

    def codes(self, name: str) -> npt.NDArray[np.uint8]:
        """(rows, code_columns) u8 of a CQ tensor, as stored (ternary: 0, 1, 3)."""
        record = self._cq(name)
        packed = self.raw(name)[: record.code_bytes]
        return cq.unpack_codes(packed, record.rows, record.code_columns, record.bits)

    def norms(self, name: str) -> npt.NDArray[np.float16]:
        """(rows, code_columns / 128) f16 of a CQ tensor; a view into the file."""
        record = self._cq(name)
        norms = np.frombuffer(self.raw(name)[record.code_bytes :], "<f2")
        return norms.reshape(record.rows, record.code_columns // layout.GROUP)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as f32, dequantised where it is CQ; a fresh array. The tokenizer has no such form."""
        record = self.record(name)
        if record.kind is Kind.CQ:
            values = cq.levels(record.bits, self.codebooks)
            return cq.dequantise(self.codes(name), self.norms(name), values, record.shape[1])
        if record.kind is Kind.RAW:
            raise UsageError(f"{self.subject}: {name} is not a tensor of numbers", code="not_a_tensor")
        stored = np.frombuffer(self.raw(name), "<f2" if record.kind is Kind.FP16 else "<f4")
        return stored.reshape(record.shape).astype(np.float32)

    @property
    def tokenizer_blob(self) -> bytes | None:
        """The embedded tokenizer (docs/formats/cact.md, "Tokenizer"), or None where the file has none."""
        return bytes(self.raw("tokenizer")) if "tokenizer" in self else None

    @property
    def head_names(self) -> tuple[str, ...]:
        """The probe heads in the file, such as ("embedding", "confidence")."""
        probes = (record.name.split(".") for record in self.records if record.name.endswith(".probes"))
        return tuple(parts[1] for parts in probes)

    def _cq(self, name: str) -> Record:
        record = self.record(name)
        if record.kind is not Kind.CQ:
            raise UsageError(f"{self.subject}: {name} is {record.kind.name}, it has no codes", code="not_cq")
        return record


def read_container(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Container:
    """Read and check a file, given by path or as bytes (which must not change while the container is used).

    Raises `ContainerError`: codes cact_* for bytes that break the format, those of `read_regular` for a path.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        subject, data = "container", memoryview(source).cast("B")
    else:
        subject, data = os.fspath(source), memoryview(read_regular(Path(source), error=ContainerError))
    header = parse_header(data, subject)
    _check_codebooks(data, header, subject)
    records = read_directory(data, header, subject)
    for record in records:
        check_values(record, data, subject)
    if (last := records[-1]).kind is Kind.RAW:
        blob = data[last.offset_bytes :]
        parse_tokenizer(blob, vocab_count=header.vocab_count, subject=subject, offset=last.offset_bytes)
    return Container(subject, data, header, records)


def _check_codebooks(data: memoryview, header: Header, subject: str) -> None:
    start, count = header.size_bytes, len(layout.CODEBOOKS)
    if len(data) < start + 4 * count:
        raise cut_off(5, subject, "codebooks", byte_count=len(data), needed=start + 4 * count)
    values = np.frombuffer(data, "<f4", count=count, offset=start)
    for bits, part in layout.CODEBOOK_SLICES.items():
        for i in range(part.start, part.stop):
            if not (np.isfinite(values[i]) and (i == part.start or values[i] > values[i - 1])):
                raise broken(
                    5,
                    "cact_bad_codebook",
                    subject,
                    f"codebooks[{i}]",
                    found=values[i],
                    allowed=f"finite and above the {bits}-bit level before it",
                    offset=start + 4 * i,
                )
