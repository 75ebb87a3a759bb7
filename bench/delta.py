"""Patch size, time and memory: our codec next to the best generic tools, on the same pairs.

    python -m bench.delta [--full FOLDER] [--members router,home] [--json]

The demo family is exported first; `--full FOLDER` adds the full-size family of `bench.full_size_family`,
made in FOLDER once. `-unseeded` rows do without the seed that the adapters started from. Every call runs in a
process of its own; seconds are CPU seconds of the call, MB (10^6 bytes) are that process's peak, Python
included. Every patch is decoded and compared. The last line of `--json` is one document.
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


@dataclass(frozen=True)
class Row:
    pair: str
    tool: str
    target_bytes: int
    patch_bytes: int
    encode_seconds: float
    decode_seconds: float
    encode_mb: float
    decode_mb: float


def run_alone(arguments: list[str]) -> tuple[float, float]:
    """CPU seconds of the call and peak memory in MB, as the child reports them."""
    command = [sys.executable, "-m", "bench.delta_peers", *arguments]
    seconds, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(megabytes)


def measure(pair: str, tool: str, base: Path, target: Path, folder: Path) -> Row:
    patch, rebuilt = folder / "patch", folder / "rebuilt"
    encode = run_alone([tool, "encode", str(base), str(target), str(patch)])
    decode = run_alone([tool, "decode", str(base), str(patch), str(rebuilt)])
    if rebuilt.read_bytes() != target.read_bytes():
        sys.exit(f"bench: {tool} did not rebuild {pair}")
    sizes = target.stat().st_size, patch.stat().st_size
    return Row(pair, tool, *sizes, encode[0], decode[0], encode[1], decode[1])


def table(rows: list[Row]) -> str:
    head = (
        f"{'pair':10}{'tool':20}{'patch':>11}{'of file':>9}{'enc s':>8}{'dec s':>8}{'enc MB':>8}{'dec MB':>8}"
    )
    lines = [head]
    for row in rows:
        share = f"{100 * row.patch_bytes / row.target_bytes:.1f} %"
        times = f"{row.encode_seconds:8.2f}{row.decode_seconds:8.2f}"
        memory = f"{row.encode_mb:8.0f}{row.decode_mb:8.0f}"
        lines.append(f"{row.pair:10}{row.tool:20}{row.patch_bytes:11,}{share:>9}{times}{memory}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare patch tools.")
    parser.add_argument("--full", type=Path, metavar="FOLDER", help="also the full-size family, made there")
    parser.add_argument("--members", default=",".join(MEMBERS), help="demo members (default: %(default)s)")
    parser.add_argument("--tools", default=",".join(TOOLS), help="tools to run (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON document last")
    arguments = parser.parse_args()
    tools = [tool for tool in arguments.tools.split(",") if tool]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = {}
        if arguments.members:
            export_family(load_family(DEMO), folder)
            pairs = {m: (folder / "base.cact", folder / f"{m}.cact") for m in arguments.members.split(",")}
        if arguments.full:
            from bench.full_size_family import MAGNITUDES, write_family

            made = write_family(arguments.full)
            pairs |= {str(m): (made["base"], made[str(m)]) for m in MAGNITUDES}
        for pair, (base, target) in pairs.items():
            rows += [measure(pair, tool, base, target, folder) for tool in tools]
    print(table(rows))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
