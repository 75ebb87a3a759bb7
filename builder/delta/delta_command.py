"""`python -m builder delta`: make, apply or show a patch.

Owns: reading and writing the files, and the printed form. Does not know: how a patch works.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builder.cact.reader import read_container
from builder.delta.apply import apply_patch
from builder.delta.codec import Progress
from builder.delta.inspect import PARTS, PatchReport, SegmentReport, inspect_patch
from builder.delta.make import DEFAULT_EFFORT, make_patch
from builder.errors import PatchError
from builder.files import artifact_line, check_target, read_regular, write_whole

COLUMNS = ("kind", "offset", "target", "rank", "patch", "q", "p", "norms", "codes", "tensor")
"""Of `delta show`: q and p are the side information of guided codes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Three actions: make, apply, show."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser("make", help="write the patch that turns BASE into TARGET")
    make.add_argument("base", type=Path, metavar="BASE", help="a .cact file")
    make.add_argument("target", type=Path, metavar="TARGET", help="a .cact file")
    make.add_argument("--out", type=Path, required=True, metavar="PATCH", help="where to write the patch")
    make.add_argument(
        "--effort", type=int, default=DEFAULT_EFFORT, help="0 (quick) to 9 (small); default %(default)s"
    )
    make.add_argument(
        "--adapter-seed",
        type=int,
        default=0,
        help="the seed that the LoRA adapter was trained from; default %(default)s",
    )
    apply = actions.add_parser("apply", help="rebuild the target from BASE and PATCH")
    apply.add_argument(
        "base", type=Path, metavar="BASE", help="the .cact file that the patch was made against"
    )
    apply.add_argument("patch", type=Path, metavar="PATCH", help="a patch")
    apply.add_argument("--out", type=Path, required=True, metavar="TARGET", help="where to write the target")
    show = actions.add_parser("show", help="say where a patch's bytes go")
    show.add_argument("patch", type=Path, metavar="PATCH", help="a patch")
    show.add_argument("--base", type=Path, metavar="BASE", help="name the tensors after this .cact file")
    show.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; the exit code is 0. stdout is the result, stderr ends with what happened."""
    if arguments.action == "make":
        check_target(arguments.out, (arguments.base, arguments.target))
        base, target = _container(arguments.base), _container(arguments.target)
        with _progress(len(target)) as progress:
            patch = make_patch(
                base,
                target,
                effort=arguments.effort,
                adapter_seed=arguments.adapter_seed,
                progress=progress,
            )
        _write(arguments.out, patch)
        share = 100 * len(patch) / len(target)
        print(f"delta: made a patch of {share:.1f} % of {arguments.target}", file=sys.stderr)
    elif arguments.action == "apply":
        check_target(arguments.out, (arguments.base, arguments.patch))
        base, patch = read_regular(arguments.base), read_regular(arguments.patch)
        with _named(arguments.patch):
            target = apply_patch(base, patch)
        _write(arguments.out, target)
        print(f"delta: rebuilt {arguments.out}, whose hash the patch proves", file=sys.stderr)
    else:
        named_after = None if arguments.base is None else read_container(arguments.base)
        patch = read_regular(arguments.patch)
        with _named(arguments.patch):
            report = inspect_patch(patch, named_after)
        print(json.dumps(_document(report)) if arguments.json else _table(report))
    return 0


def _container(path: Path) -> bytes:
    """A file that is a container: the maker would not know its name."""
    return bytes(read_container(path).data)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the patch's file before what is said of it; the codec sees bytes only."""
    try:
        yield
    except PatchError as error:
        raise PatchError(f"{path}: {error}", code=error.code) from None


@contextmanager
def _progress(target_bytes: int) -> Iterator[Progress]:
    """A bar over the target's bytes on a terminal, nothing elsewhere; on stderr."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # Imported here: a pipe or a test has no use for it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("delta"), BarColumn(), DownloadColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=target_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _write(path: Path, data: bytes) -> None:
    write_whole(path, data)
    print(artifact_line(path, len(data), hashlib.sha256(data).hexdigest()))


def _document(report: PatchReport) -> dict[str, object]:
    segments = [
        {**dataclasses.asdict(segment), "kind": segment.kind.name.lower()} for segment in report.segments
    ]
    return {
        "patch_bytes": report.patch_bytes,
        "header": dataclasses.asdict(report.header),
        "bytes_by_part": report.bytes_by_part,
        "segments": segments,
    }


def _table(report: PatchReport) -> str:
    """Header, one line per segment, then where the bytes go; tensors have a column where they are known."""
    header = report.header
    has_names = any(segment.tensor for segment in report.segments)
    rows = [_row(segment)[: None if has_names else -1] for segment in report.segments]
    lines = [
        f"version {header.version} container 0x{header.tag:08x} patch {report.patch_bytes:,} bytes",
        artifact_line("base  ", header.base_bytes, header.base_sha256),
        artifact_line("target", header.target_bytes, header.target_sha256),
        *_aligned([COLUMNS[: None if has_names else -1], *rows]),
    ]
    parts = report.bytes_by_part
    lines.append("bytes: " + ", ".join(f"{part} {parts[part]:,}" for part in PARTS))
    return "\n".join(lines)


def _row(segment: SegmentReport) -> tuple[str, ...]:
    costs = (segment.patch_bytes, segment.q_bytes, segment.p_bytes, segment.norm_bytes, segment.code_bytes)
    numbers = (f"{segment.target_offset:,}", f"{segment.target_bytes:,}", str(segment.rank or ""))
    return (
        segment.kind.name.lower(),
        *numbers,
        *(f"{cost:,}" if cost else "" for cost in costs),
        segment.tensor or "",
    )


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Kind and tensor to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if name in ("kind", "tensor") else cell.rjust(width)
            for name, cell, width in zip(COLUMNS, row, widths, strict=False)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
