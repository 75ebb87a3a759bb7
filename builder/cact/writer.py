"""Writing a `.cact` file: blobs in canonical order, laid out where the format wants them.

Owns: `Blob`, its makers, and `write_container`. Does not know: checkpoints, what tensors mean.
Every file is read back and checked before it is handed out, so a program cannot write what no reader takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from builder.cact import layout
from builder.cact.codes import Codes, Halves, pack_codes
from builder.cact.header import Header, pack_header
from builder.cact.layout import Kind
from builder.cact.reader import Container, read_container


@dataclass(frozen=True)
class Blob:
    """One tensor as the file stores it; its name follows from its place among the others."""

    kind: Kind
    shape: tuple[int, ...]
    data: bytes | memoryview
    bits: int = 0


def half_blob(values: npt.ArrayLike) -> Blob:
    """An FP16 tensor. A value beyond 65504 becomes infinite: `write_container` refuses it by name."""
    with np.errstate(over="ignore"):
        halves = np.asarray(values, np.float16)
    return Blob(Kind.FP16, halves.shape, halves.astype("<f2").tobytes())


def single_blob(values: npt.ArrayLike) -> Blob:
    """An FP32 tensor."""
    singles = np.asarray(values, np.float32)
    return Blob(Kind.FP32, singles.shape, singles.astype("<f4").tobytes())


def cq_blob(codes: Codes, norms: Halves, bits: int, columns: int) -> Blob:
    """A CQ tensor of (rows, columns) from (rows, padded) codes and (rows, padded / 128) norms."""
    data = pack_codes(codes, bits) + norms.astype("<f2").tobytes()
    return Blob(Kind.CQ, (len(codes), columns), data, bits)


def raw_blob(data: bytes) -> Blob:
    """The embedded tokenizer."""
    return Blob(Kind.RAW, (), data)


def blobs_of(container: Container) -> list[Blob]:
    """A container's tensors, ready to be written again; views, not copies."""
    return [
        Blob(record.kind, record.shape, container.raw(record.name), record.bits)
        for record in container.records
    ]


def write_container(
    header: Header, blobs: Sequence[Blob], codebooks: npt.NDArray[np.float32] = layout.CODEBOOKS
) -> bytes:
    """The bytes of a file with these tensors; `header.tensor_count` is set from them.

    Raises `ContainerError` (codes cact_*) where the tensors are not those that the header asks for.
    """
    start = pack_header(dataclasses.replace(header, tensor_count=len(blobs)))
    start += codebooks.astype("<f4").tobytes()
    end = len(start) + len(blobs) * layout.RECORD.size
    directory = bytearray()
    offsets = []
    for blob in blobs:
        offset = layout.align(end)
        end = offset + len(blob.data)
        offsets.append(offset)
        directory += _record(blob, offset)
    data = bytearray(end)
    data[: len(start) + len(directory)] = start + directory
    for blob, offset in zip(blobs, offsets, strict=True):
        data[offset : offset + len(blob.data)] = blob.data
    read_container(data)
    return bytes(data)


def _record(blob: Blob, offset: int) -> bytes:
    shape = (*blob.shape, 0, 0, 0, 0)[:4]
    group = layout.GROUP if blob.kind is Kind.CQ else 0
    return layout.RECORD.pack(blob.kind, len(blob.shape), 0, *shape, offset, len(blob.data), group, blob.bits)
