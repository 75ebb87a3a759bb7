"""Budgeted exports against plain ones: patch sizes, what of the change arrives, and agreement.

    python -m bench.budget [--members home,kitchen] [--budgets 60KB,20KB] [--full FOLDER] [--json]

Every member is exported at the patch-friendly point, and the demo's at each of `--budgets` too; its KL and
exact match are over its turns in the demo's conversations. `--full FOLDER` adds the full-size family of
`bench.full_size_sources`, made in FOLDER once; random weights have no answers to compare. Every patch is
applied and compared. `error` is the relative error of the shift. The last line of `--json` is one document.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.delta import apply_patch
from builder.delta.make import DEFAULT_EFFORT
from builder.family.budget.evaluate import Example
from builder.family.budget.export import Budget, BudgetExporter
from builder.family.budget.size import parse_size
from builder.family.export import Exporters
from builder.family.family import Family, load_family

DEMO = Path(__file__).parents[1] / "examples" / "demo"
MEMBERS = ("router", "home", "kitchen", "media", "calendar")


@dataclass(frozen=True)
class Row:
    member: str
    budget: str
    mode: str
    plain_bytes: int
    patch_bytes: int
    gain: float
    lowest_gain: float
    highest_gain: float
    error: float
    plain_gain: float
    plain_error: float
    kl: float | None
    exact_match: float | None
    examples: int
    cpu_seconds: float


def measure(exporter: BudgetExporter, family: Family, member: str, size: str, examples: list[Example]) -> Row:
    started = time.process_time()
    wanted = Budget(None if size == "friendly" else parse_size(size), examples=tuple(examples))
    made = exporter.export(family.member(member), wanted)
    seconds = time.process_time() - started
    if apply_patch(exporter.base, made.patch) != made.data:
        sys.exit(f"bench: the patch of {member} does not give it back")
    arrival, plain, agreement = made.arrival, made.plain_arrival, made.agreement
    return Row(
        member=member,
        budget=size,
        mode=made.lossy.mode if made.lossy else "plain",
        plain_bytes=made.plain_patch_bytes,
        patch_bytes=len(made.patch),
        gain=arrival.gain,
        lowest_gain=arrival.lowest_gain,
        highest_gain=arrival.highest_gain,
        error=arrival.relative_error,
        plain_gain=plain.gain,
        plain_error=plain.relative_error,
        kl=agreement.kl if agreement else None,
        exact_match=agreement.exact_match if agreement else None,
        examples=len(examples),
        cpu_seconds=seconds,
    )


def _exporter(family: Family) -> BudgetExporter:
    exporters = Exporters(family)
    return BudgetExporter(exporters.export(family.base, None), exporters, effort=DEFAULT_EFFORT)


def demo_examples(member: str) -> list[Example]:
    """The member's turns in the demo's conversations."""
    conversations = json.loads((DEMO / "conversations.json").read_text("utf-8"))
    turns = [turn for conversation in conversations for turn in conversation["turns"]]
    return [Example((turn["user"],), None, None) for turn in turns if turn["route"] == member]


def table(rows: list[Row]) -> str:
    lines = [
        f"{'member':10}{'budget':10}{'mode':15}{'plain':>11}{'patch':>11}{'gain':>7}{'lowest':>8}{'highest':>8}"
        f"{'error':>7}{'plain error':>13}{'KL':>9}{'exact match':>14}{'CPU s':>7}"
    ]
    for row in rows:
        sizes = f"{row.plain_bytes:11,}{row.patch_bytes:11,}"
        gains = f"{row.gain:7.3f}{row.lowest_gain:8.3f}{row.highest_gain:8.3f}"
        errors = f"{row.error:7.3f}{row.plain_error:13.3f}"
        matches = (
            "" if row.exact_match is None else f"{round(row.exact_match * row.examples)} of {row.examples}"
        )
        agreement = f"{'' if row.kl is None else f'{row.kl:.5f}':>9}{matches:>14}"
        lines.append(
            f"{row.member:10}{row.budget:10}{row.mode:15}{sizes}{gains}{errors}{agreement}{row.cpu_seconds:7.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure budgeted exports.")
    parser.add_argument("--members", default=",".join(MEMBERS), help="demo members (default: %(default)s)")
    parser.add_argument("--budgets", default="", help="more budgets for them, such as 60KB,20KB")
    parser.add_argument("--full", type=Path, metavar="FOLDER", help="also the full-size family, made there")
    parser.add_argument("--json", action="store_true", help="print one JSON document last")
    arguments = parser.parse_args()
    rows = []
    if arguments.members:
        family = load_family(DEMO / "family.toml")
        exporter = _exporter(family)
        for member in arguments.members.split(","):
            for size in ("friendly", *filter(None, arguments.budgets.split(","))):
                rows.append(measure(exporter, family, member, size, demo_examples(member)))
    if arguments.full:
        from bench.full_size_sources import write_sources

        family = load_family(write_sources(arguments.full))
        exporter = _exporter(family)
        rows += [measure(exporter, family, member.id, "friendly", []) for member in family.specialists]
    print(table(rows))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
