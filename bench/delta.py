"""Patch size, time and memory: our codec next to the best generic tools, on the same pairs.

    python -m bench.delta [--full FOLDER] [--members router,home] [--chromium] [--json]

The demo family is exported first; `--full FOLDER` adds the full-size family of `bench.full_size_family`,
made in FOLDER once. `-unseeded` rows do without the seed that the adapters started from. Every call runs in a
process of its own; seconds are CPU seconds of the call, MB (10^6 bytes) are that process's peak: Python and
the files included, but of a program only the program's. Every patch is decoded and compared. A peer that is
not installed is named: xdelta3 and zstd are packages of Debian, hdiffpatch and bsdiff4 are on PyPI.
`--chromium` rebuilds each target in a browser too. The last line of `--json` is one document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.delta_peers import TOOLS
from builder.family.export import export_family
from builder.family.family import load_family

DEMO = Path(__file__).parents[1] / "examples" / "demo" / "family.toml"
MEMBERS = ("router", "home", "kitchen", "media", "calendar")


CHROMIUM_EFFORT = 3


@dataclass(frozen=True)
class Row:
    """One tool and one pair; a tool that is not here has a patch of no bytes."""

    pair: str
    tool: str
    source: str
    target_bytes: int
    patch_bytes: int
    encode_seconds: float
    decode_seconds: float
    encode_mb: float
    decode_mb: float


Family = tuple[Path, dict[str, Path]]
"""A base, and its targets by name."""


def run_alone(arguments: list[str]) -> tuple[float, float]:
    """CPU seconds of the call and peak memory in MB, as the child reports them."""
    command = [sys.executable, "-m", "bench.delta_peers", *arguments]
    seconds, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(megabytes)


def measure(pair: str, tool: str, base: Path, target: Path, folder: Path) -> Row:
    source = TOOLS[tool].source
    if not TOOLS[tool].is_here:
        return Row(pair, tool, source, target.stat().st_size, 0, 0, 0, 0, 0)
    patch, rebuilt = folder / "patch", folder / "rebuilt"
    encode = run_alone([tool, "encode", str(base), str(target), str(patch)])
    decode = run_alone([tool, "decode", str(base), str(patch), str(rebuilt)])
    if rebuilt.read_bytes() != target.read_bytes():
        sys.exit(f"bench: {tool} did not rebuild {pair}")
    sizes = target.stat().st_size, patch.stat().st_size
    return Row(pair, tool, source, *sizes, encode[0], decode[0], encode[1], decode[1])


def table(rows: list[Row]) -> str:
    head = (
        f"{'pair':10}{'tool':20}{'patch':>11}{'of file':>9}{'enc s':>8}{'dec s':>8}{'enc MB':>8}{'dec MB':>8}"
    )
    lines = [head]
    for row in rows:
        if not row.patch_bytes:
            lines.append(f"{row.pair:10}{row.tool:20}  {row.source}")
            continue
        share = f"{100 * row.patch_bytes / row.target_bytes:.1f} %"
        times = f"{row.encode_seconds:8.2f}{row.decode_seconds:8.2f}"
        memory = f"{row.encode_mb:8.0f}{row.decode_mb:8.0f}"
        lines.append(f"{row.pair:10}{row.tool:20}{row.patch_bytes:11,}{share:>9}{times}{memory}")
    sources = {row.tool: row.source for row in rows}
    return "\n".join([*lines, "", *(f"{tool:20}{source}" for tool, source in sources.items())])


def chromium_table(families: list[Family], folder: Path) -> str:
    """Rebuilding in the browser: one line a target, after what opening the base takes without a patch."""
    from bench.delta_chromium import rebuild_seconds

    lines = ["", f"{'':10}rebuild and open in Chromium, worker's CPU s (effort {CHROMIUM_EFFORT})"]
    for place, (base, targets) in enumerate(families):
        seconds = rebuild_seconds(base, targets, folder / f"chromium{place}", CHROMIUM_EFFORT)
        lines += [f"{name:10}{value:8.3f}" for name, value in seconds.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare patch tools.")
    parser.add_argument("--full", type=Path, metavar="FOLDER", help="also the full-size family, made there")
    parser.add_argument("--members", default=",".join(MEMBERS), help="demo members (default: %(default)s)")
    parser.add_argument("--tools", default=",".join(TOOLS), help="tools to run (default: all)")
    parser.add_argument("--chromium", action="store_true", help="rebuild in a browser too")
    parser.add_argument("--json", action="store_true", help="print one JSON document last")
    arguments = parser.parse_args()
    tools = [tool for tool in arguments.tools.split(",") if tool]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        families = _families(folder, arguments)
        for base, targets in families:
            rows += [
                measure(p, tool, base, target, folder) for p, target in targets.items() for tool in tools
            ]
        print(table(rows))
        if arguments.chromium:
            print(chromium_table(families, folder))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))


def _families(folder: Path, arguments: argparse.Namespace) -> list[Family]:
    families: list[Family] = []
    if arguments.members:
        export_family(load_family(DEMO), folder)
        targets = {member: folder / f"{member}.cact" for member in arguments.members.split(",")}
        families.append((folder / "base.cact", targets))
    if arguments.full:
        from bench.full_size_family import write_family

        made = write_family(arguments.full)
        families.append((made.pop("base"), made))
    return families


if __name__ == "__main__":
    main()
