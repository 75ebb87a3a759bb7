"""The worked hex dump of docs/formats/cact.md, made from tests/golden/tiny84.cact.

`python -m tests.cact.worked_dump` puts it into the document again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from builder.cact import layout
from builder.cact.reader import read_container
from tests.cact.samples import GOLDEN

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "cact.md"
START, END = "<!-- dump:start -->\n", "<!-- dump:end -->\n"
BYTES_SHOWN = 12


def dump() -> str:
    """The block between the two marks."""
    data = (GOLDEN / "tiny84.cact").read_bytes()
    lines = [f"{'at':>6}  {'bytes':<{3 * BYTES_SHOWN + 3}}  meaning", *_lines(data)]
    return "```\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"


def _line(data: bytes, at: int, size: int, meaning: str) -> str:
    shown = data[at : at + min(size, BYTES_SHOWN)].hex(" ")
    if size > BYTES_SHOWN:
        shown += " .."
    return f"{at:>6}  {shown:<{3 * BYTES_SHOWN + 3}}  {meaning}"


def _lines(data: bytes) -> Iterator[str]:
    container = read_container(data)
    yield from _header(data)
    books = container.header.size_bytes
    for bits, part in layout.CODEBOOK_SLICES.items():
        levels = container.codebooks[part]
        size = 4 * len(levels)
        yield _line(
            data, books + 4 * part.start, size, f"{bits}-bit levels: {levels[0]:.8f} to {levels[-1]:.8f}"
        )
    directory = books + 4 * len(layout.CODEBOOKS)
    for index in (0, 1, container.header.tensor_count - 1):
        yield from _record(data, directory + index * layout.RECORD.size, index)
        if index == 1:
            yield f"{'..':>6}  {'':<{3 * BYTES_SHOWN + 3}}  records 2 to 90"
    end = directory + container.header.tensor_count * layout.RECORD.size
    yield _line(data, end, container.records[0].offset_bytes - end, "gap")
    yield from _embedding(data)
    yield from _tokenizer(data)


def _header(data: bytes) -> Iterator[str]:
    values = layout.HEADER_STRUCTS[layout.TAG_84].unpack_from(data)
    zeros = 0
    fields = layout.HEADER_FIELDS[layout.TAG_84]
    for index, (name, value) in enumerate(zip(fields, values, strict=True)):
        if name.startswith("sites[") and name != "sites[0]":
            zeros += 1
            if name == "sites[15]":
                yield _line(data, 4 * (index - zeros + 1), 4 * zeros, "sites[1] to sites[15] 0")
            continue
        text = f"0x{value:08x}" if name == "tag" else f"{value:g}" if name == "rope_theta" else f"{value}"
        yield _line(data, 4 * index, 4, f"{name} {text}")


def _record(data: bytes, at: int, index: int) -> Iterator[str]:
    container = read_container(data)
    record = container.records[index]
    dtype, ndim, _, *shape = struct.unpack_from("<BBH4I", data, at)
    yield _line(
        data, at, 4, f"record {index}, {record.name}: dtype {dtype} ({record.kind.name}), ndim {ndim}"
    )
    yield _line(data, at + 4, 16, f"  shape {' '.join(map(str, shape))}")
    yield _line(data, at + 20, 8, f"  offset {record.offset_bytes}")
    yield _line(data, at + 28, 8, f"  nbytes {record.size_bytes}")
    yield _line(data, at + 36, 8, f"  group {record.group}, bits {record.bits}")


def _embedding(data: bytes) -> Iterator[str]:
    container = read_container(data)
    record = container.record("embedding")
    codes, norms = container.codes("embedding"), container.norms("embedding")
    first = " ".join(map(str, codes[0, :6]))
    yield _line(data, record.offset_bytes, 64, f"row 0: 128 codes {first} ..")
    norms_at = record.offset_bytes + record.code_bytes
    yield _line(data, norms_at, 2 * len(norms), f"24 norms: {' '.join(f'{n:.4f}' for n in norms[:4, 0])} ..")
    weights = " ".join(f"{w:.4f}" for w in container.tensor("embedding")[0, :4])
    yield f"{'':>6}  {'':<{3 * BYTES_SHOWN + 3}}  so row 0 is {weights} .. (8 weights)"


def _tokenizer(data: bytes) -> Iterator[str]:
    at = read_container(data).record("tokenizer").offset_bytes
    count, *ids = struct.unpack_from("<5I", data, at)
    yield _line(data, at, 4, f"tokenizer: piece_count {count}")
    yield _line(data, at + 4, 16, f"  pad, eos, bos, unk {' '.join(map(str, ids))}")
    yield _line(data, at + 20, 4, f"  add_dummy_prefix {data[at + 20]}, byte_fallback {data[at + 21]}, zero")
    score, kind, size = struct.unpack_from("<fBH", data, at + 24)
    text = data[at + 31 : at + 31 + size].decode()
    yield _line(data, at + 24, 7, f"  piece 0: score {np.float32(score):g}, type {kind}, {size} bytes")
    yield _line(data, at + 31, size, f"  {text!r}")


def main() -> None:
    """Replace the block in the document."""
    text = DOCUMENT.read_text("utf-8")
    before, rest = text.split(START)
    DOCUMENT.write_text(before + START + dump() + END + rest.split(END)[1], "utf-8")


if __name__ == "__main__":
    main()
