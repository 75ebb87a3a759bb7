"""`python -m builder show`: what is in a `.cact` file, for people, for diff, for programs.

Owns: three ways to print one container. Does not know: how it was read.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from builder.cact.directory import Record
from builder.cact.layout import TERNARY_BITS, Kind
from builder.cact.reader import Container, read_container
from builder.cact.tokenizer import PieceType, parse_tokenizer
from builder.errors import plain_text
from builder.files import SHORT_HASH


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `show`."""
    parser.add_argument("file", type=Path, help="a .cact file")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--diffable",
        action="store_true",
        help="one fact per line and a hash per tensor instead of offsets: diff two files of a family with it",
    )
    form.add_argument("--json", action="store_true", help="one JSON document on one line")


def run(arguments: argparse.Namespace) -> int:
    """Print one file. Raises `ContainerError`."""
    container = read_container(arguments.file)
    if arguments.json:
        print(json.dumps(document(container), separators=(",", ":")))
    else:
        print("\n".join(diffable(container) if arguments.diffable else summary(container)))
    return 0


def summary(container: Container) -> Iterator[str]:
    """The header in words, then one tensor per line."""
    header = container.header
    yield (
        f"{plain_text(container.subject)}: Needle {header.generation} (tag 0x{header.tag:08x}), "
        f"{_count(header.tensor_count, 'tensor')}, {len(container.data):,} bytes"
    )
    yield ""
    for title, text in _facts(container):
        yield f"  {title:<11}{text}"
    yield ""
    names = max(len(record.name) for record in container.records)
    shapes = max(len(_shape(record)) for record in container.records)
    yield f"  {'tensor':<{names}}  {'kind':<6}{'shape':>{shapes}}  {'bytes':>12}  {'at':>12}"
    for record in container.records:
        yield (
            f"  {record.name:<{names}}  {_kind(record):<6}{_shape(record):>{shapes}}"
            f"  {record.size_bytes:>12,}  {record.offset_bytes:>12,}"
        )


def diffable(container: Container) -> Iterator[str]:
    """Header fields, then tensors with their hashes; nothing depends on the file's name or on offsets."""
    for name, value in vars(container.header).items():
        yield f"header.{name} = {f'0x{value:08x}' if name == 'tag' else _plain(value)}"
    yield f"codebooks = {_hash(container.codebooks.tobytes())}"
    for record in container.records:
        digest = _hash(container.raw(record.name))
        yield f"{record.name} = {_kind(record)} [{_shape(record)}] {record.size_bytes} bytes {digest}"


def document(container: Container) -> dict[str, object]:
    """The file as JSON values."""
    header = container.header
    return {
        "file": container.subject,
        "bytes": len(container.data),
        "sha256": hashlib.sha256(container.data).hexdigest(),
        "tag": f"0x{header.tag:08x}",
        "generation": header.generation,
        "header": {name: value for name, value in vars(header).items() if name != "tag"},
        "heads": list(container.head_names),
        "tensors": [
            {
                "name": record.name,
                "kind": record.kind.name.lower(),
                "bits": record.bits,
                "shape": list(record.shape),
                "offset": record.offset_bytes,
                "bytes": record.size_bytes,
                "sha256": hashlib.sha256(container.raw(record.name)).hexdigest(),
            }
            for record in container.records
        ],
    }


def _facts(container: Container) -> Iterator[tuple[str, str]]:
    header = container.header
    yield (
        "stack",
        f"{_count(header.layer_count, 'layer')} of width {header.d_model} (rotation {header.hada_n}), "
        f"{_count(header.lane_count, 'lane')}, {header.max_seq_len:,} positions",
    )
    taps = f", {_count(header.qkv_conv_taps, 'conv tap')}" if header.qkv_conv_taps else ""
    yield (
        "attention",
        f"{_count(header.head_count, 'head')} over {header.kv_head_count} for keys and values, "
        f"{header.qk_head_dim} wide ({header.v_head_dim} for values), "
        f"RoPE base {header.rope_theta:,.0f}{taps}",
    )
    if header.sliding_window:
        layers = f"all of it in {_count(header.global_layers, 'layer')}"
        yield "sees", f"the last {header.sliding_window:,} positions; {layers}"
    if header.sites:
        yield (
            "engrams",
            f"at {_count(header.sites, 'layer')}: {_count(header.engram_table_count, 'table')} of "
            f"{header.engram_slots:,} x {header.engram_sub_dim} for orders {_list(header.orders)}",
        )
    yield "vocabulary", _vocabulary(container)
    yield "cache", f"window {header.kv_window:,}, {header.kv_bits} bits"
    yield "heads", ", ".join(container.head_names) or "none"
    yield "weights", _weights(container.records)


def _vocabulary(container: Container) -> str:
    header = container.header
    text = f"{header.vocab_count:,} rows, {header.logit_count:,} logits"
    if container.tokenizer_blob is None:
        return f"{text}, no tokenizer"
    tokenizer = parse_tokenizer(container.tokenizer_blob)
    kinds = collections.Counter(piece.type for piece in tokenizer.pieces)
    dummy = "a dummy prefix" if tokenizer.add_dummy_prefix else "no dummy prefix"
    return (
        f"{text}, {_count(len(tokenizer.pieces), 'piece')} ({kinds[PieceType.USER_DEFINED]} markers, "
        f"{kinds[PieceType.BYTE]} bytes), {dummy}"
    )


def _weights(records: Sequence[Record]) -> str:
    """Numbers and bytes by kind, the largest first."""
    numbers: collections.Counter[str] = collections.Counter()
    sizes: collections.Counter[str] = collections.Counter()
    for record in records:
        if record.kind is not Kind.RAW:
            numbers[_kind(record)] += math.prod(record.shape)
            sizes[_kind(record)] += record.size_bytes
    return ", ".join(f"{numbers[kind]:,} {kind} in {size:,} bytes" for kind, size in sizes.most_common())


def _kind(record: Record) -> str:
    if record.kind is not Kind.CQ:
        return record.kind.name
    return "CQT" if record.bits == TERNARY_BITS else f"CQ{record.bits}"


def _shape(record: Record) -> str:
    return " x ".join(map(str, record.shape))


def _count(items: int | Sequence[int], noun: str) -> str:
    """`1 layer`, `6 layers`, `layers 2 and 5`."""
    if isinstance(items, int):
        return f"{items:,} {noun}" if items == 1 else f"{items:,} {noun}s"
    return f"no {noun}" if not items else f"{noun}{'s' if len(items) > 1 else ''} {_list(items)}"


def _list(items: Sequence[int]) -> str:
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _hash(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:SHORT_HASH]
