"""`pack [FAMILY.toml]`: write a family as a static site and say what it costs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from builder.delta.make import DEFAULT_EFFORT, EFFORT_MAX
from builder.errors import UsageError, plain_text
from builder.family.family import load_family
from builder.publish.cache import FOLDER_NAME
from builder.publish.pack import Options, Report, pack
from builder.publish.pages import default_web_folder
from builder.publish.parts import PART_BYTES_DEFAULT, parse_part_size
from builder.publish.previous import earlier_bases
from builder.publish.report import print_report, report_document
from builder.publish.report_page import check_report_place, write_report_page
from builder.publish.steps import Progress
from builder.runtime.engine import NUMERICS

JOBS_MAX = 64
JOBS_DEFAULT_MAX = 4  # Each job holds the base, one member and the patch maker's working memory.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "family", nargs="?", type=Path, metavar="FAMILY.toml", help="default: the demo family"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="SITE", help="folder to write the site to")
    parser.add_argument(
        "--part-size",
        default=f"{PART_BYTES_DEFAULT // 2**20}MiB",
        metavar="SIZE",
        help="largest file, up to 25MiB (default: %(default)s)",
    )
    parser.add_argument(
        "--effort",
        type=int,
        metavar="0-9",
        default=DEFAULT_EFFORT,
        help="of making patches: 0 quick, 9 small (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="members to work on at a time (default: one per processor, 4 at most)",
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help=f"default: {FOLDER_NAME} beside FAMILY.toml"
    )
    parser.add_argument(
        "--drop-previous",
        action="store_true",
        help="remove the files of the release before, which open tabs may still want",
    )
    parser.add_argument(
        "--previous",
        action="append",
        default=[],
        metavar="SITE_OR_URL",
        help="an earlier release: its visitors download a patch instead of the new base; may be repeated",
    )
    parser.add_argument(
        "--numerics",
        choices=NUMERICS,
        default=NUMERICS[0],
        help="how visitors compute (default: %(default)s)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="draw what each member costs, and why, as one page"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON document on a line")


def run(arguments: argparse.Namespace) -> int:
    """Pack; stdout is the table, stderr is progress."""
    jobs = arguments.jobs if arguments.jobs is not None else min(os.cpu_count() or 1, JOBS_DEFAULT_MAX)
    if not 1 <= jobs <= JOBS_MAX:
        raise UsageError(f"--jobs: is {jobs}, must be 1 to {JOBS_MAX}")
    if not 0 <= arguments.effort <= EFFORT_MAX:
        raise UsageError(f"--effort: is {arguments.effort}, must be 0 to {EFFORT_MAX}")
    out: Path = arguments.out
    family = arguments.family or demo_family()
    options = Options(
        part_bytes=parse_part_size(arguments.part_size),
        jobs=jobs,
        cache_folder=arguments.cache or (arguments.family or out.absolute()).parent / FOLDER_NAME,
        web_folder=default_web_folder(),
        keep_previous=not arguments.drop_previous,
        numerics=arguments.numerics,
        effort=arguments.effort,
        previous=tuple(arguments.previous),
    )
    if arguments.report:
        check_report_place(arguments.report, out)
    with _progress() as progress:
        loaded = load_family(family)
        earlier = earlier_bases(options.previous) if arguments.report else {}
        report = pack(loaded, out, options, progress)
        if arguments.report:
            write_report_page(out, arguments.report, earlier, progress)
    print_report(report, Console(soft_wrap=True))
    for cost in report.upgrades:
        if cost.note:
            _write(plain_text(f"pack: no upgrade from {cost.previous}: {cost.note}") + "\n")
    if arguments.json:
        print(json.dumps(report_document(report)))
    if arguments.report:
        _write(plain_text(f"pack: drew {arguments.report}") + "\n")
    _write(plain_text(_last_line(report)) + "\n")
    return 0


def demo_family() -> Path:
    """The family file of the demo: inside an installed package, or in the checkout."""
    packaged = Path(__file__).parent / "demo" / "family.toml"
    return packaged if packaged.is_file() else Path(__file__).parents[2] / "examples" / "demo" / "family.toml"


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, one line per step elsewhere; both on stderr."""
    begun: set[str] = set()

    def begins(step: str) -> bool:
        is_new = step not in begun
        begun.add(step)
        return is_new

    if not sys.stderr.isatty():
        # One write a line: `print` writes the line's end by itself, and another thread comes between.
        yield lambda step, done, total: _write(f"pack: {step}\n") if begins(step) else None
        return
    columns = (TextColumn("pack"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def draw(step: str, done: float, total: int) -> None:
            if begins(step):
                bar.update(task, description=step)
            bar.update(task, completed=done, total=total)

        yield draw


def _write(line: str) -> None:
    sys.stderr.write(line)


def _last_line(report: Report) -> str:
    parts = sum(cost.part_count for cost in report.members)
    what = f"{len(report.members)} models, {parts} parts, release {report.release[:12]}"
    return f"pack: {report.site}: {what}; {len(report.made)} steps done, {len(report.reused)} reused"
