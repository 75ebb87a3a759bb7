"""`python -m builder family`: export a family's models, or check that they can be exported.

Owns: the two subcommands and what they print. Does not know: how it is done. It is in this room because
a check asks what `pack` asks of tools (calls.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from builder.errors import UsageError, plain_text
from builder.family.budget.export import Budget, Budgeted, BudgetExporter
from builder.family.budget.options import (
    add_budget_arguments,
    budget_document,
    budget_lines,
    budget_of,
)
from builder.family.check import Finding, check_family
from builder.family.export import Exporters, Progress, check_places, write_member
from builder.family.family import Family, Member, load_family
from builder.files import artifact_line, check_target, write_whole
from builder.publish.calls import answering, call_problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `family`."""
    commands = parser.add_subparsers(dest="family_command", metavar="COMMAND", required=True)
    export = commands.add_parser("export", help="write the members' .cact files", description=_EXPORT)
    export.add_argument("family", type=Path, metavar="FAMILY.toml")
    export.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to write <id>.cact into"
    )
    export.add_argument("--member", metavar="ID", help="export this member only")
    export.add_argument("--json", action="store_true", help="print one JSON document as the last line")
    add_budget_arguments(export)
    check = commands.add_parser("check", help="say what would be refused", description=_CHECK)
    check.add_argument("family", type=Path, metavar="FAMILY.toml")
    check.add_argument("--json", action="store_true", help="print one JSON document as the last line")


_EXPORT = "Merge, quantise and write every member of a family; see docs/family.md."
_CHECK = (
    "Read every checkpoint, adapter and container of a family and compare them, without writing anything."
)


def run(arguments: argparse.Namespace) -> int:
    """Run one of the two. Raises `SaguaroError`."""
    family = load_family(arguments.family)
    if arguments.family_command == "check":
        return _check(family, as_json=arguments.json)
    budget = budget_of(arguments)
    members = family.members if arguments.member is None else (family.member(arguments.member),)
    if budget is not None and arguments.member is None:
        members = _adapted(family)
    return _export(family, arguments.out, members, budget, as_json=arguments.json)


def _export(
    family: Family, folder: Path, members: Sequence[Member], budget: Budget | None, *, as_json: bool
) -> int:
    """Plain members are written one by one; budgeted ones are all made before the first file is written."""
    budgets = {member.id: budget or _own_budget(member) for member in members}
    check_places(family, members, folder)
    for member in members if folder.is_dir() else []:
        if budgets[member.id] is not None:
            check_target(folder / f"{member.id}.patch", family.sources)
    exporters = Exporters(family)
    budgeted = _budgeted(family, exporters, members, budgets)
    artifacts = []
    for member in members:
        if member.id in budgeted:
            artifacts.append(_write_budgeted(budgeted[member.id], folder))
        else:
            artifacts.append(_write_plain(exporters, member, folder))
    lossy = sum(made.lossy is not None for made in budgeted.values())
    note = f", {lossy} of them lossy" if budgeted else ""
    print(f"family: exported {_count(len(artifacts), 'model')} to {folder}{note}", file=sys.stderr)
    if as_json:
        print(json.dumps({"family": family.name, "models": artifacts}))
    return 0


def _own_budget(member: Member) -> Budget | None:
    return None if member.budget is None else Budget.of(member.budget)


def _budgeted(
    family: Family, exporters: Exporters, members: Sequence[Member], budgets: dict[str, Budget | None]
) -> dict[str, Budgeted]:
    wanted = [(member, budget) for member in members if (budget := budgets[member.id]) is not None]
    if not wanted:
        return {}
    exporter = BudgetExporter(exporters.export(family.base, None), exporters)
    return {member.id: exporter.export(member, budget, _tell) for member, budget in wanted}


def _write_plain(exporters: Exporters, member: Member, folder: Path) -> dict[str, object]:
    with _progress(member.id) as progress:
        data = exporters.export(member, progress)
    path = write_member(member, folder, data)
    digest = hashlib.sha256(data).hexdigest()
    print(artifact_line(path, len(data), digest), flush=True)
    return {"id": member.id, "path": str(path), "bytes": len(data), "sha256": digest}


def _adapted(family: Family) -> tuple[Member, ...]:
    members = tuple(member for member in family.members[1:] if member.adapter is not None)
    if not members:
        raise UsageError(f"{family.path}: has no member with an adapter, which a budget needs")
    return members


def _write_budgeted(made: Budgeted, folder: Path) -> dict[str, object]:
    path, patch_path = write_member(made.member, folder, made.data), folder / f"{made.member.id}.patch"
    write_whole(patch_path, made.patch)
    digest = hashlib.sha256(made.data).hexdigest()
    patch_digest = hashlib.sha256(made.patch).hexdigest()
    print(artifact_line(path, len(made.data), digest))
    print(artifact_line(patch_path, len(made.patch), patch_digest))
    print(*budget_lines(made), sep="\n", flush=True)
    files = {"id": made.member.id, "path": str(path), "bytes": len(made.data), "sha256": digest}
    return {**files, "patch": str(patch_path), "patch_sha256": patch_digest, **budget_document(made)}


def _tell(trial: str) -> None:
    print(f"family: {trial}", file=sys.stderr, flush=True)


def _check(family: Family, *, as_json: bool) -> int:
    findings = _with_calls(family, check_family(family))
    for finding in findings:
        print(f"{finding.member.id}: {plain_text(str(finding.problem or 'good'))}")
    bad = sum(finding.problem is not None for finding in findings)
    print(f"family: {_count(len(findings), 'member')}, {_count(bad, 'problem')}", file=sys.stderr)
    if as_json:
        document = [
            {
                "id": finding.member.id,
                "good": finding.problem is None,
                "code": finding.problem.code if finding.problem else None,
                "problem": str(finding.problem) if finding.problem else None,
            }
            for finding in findings
        ]
        print(json.dumps({"family": family.name, "members": document}))
    return 1 if bad else 0


def _with_calls(family: Family, findings: list[Finding]) -> list[Finding]:
    """The findings, and what `pack` would refuse of the tools of members that have no problem yet."""
    members = answering([finding.member for finding in findings if finding.problem is None])
    if findings[0].problem is not None or not members:  # Without a base there is no tokenizer.
        return findings
    problems = dict(call_problems(Exporters(family).export(family.base, None), members))
    return [replace(item, problem=item.problem or problems.get(item.member)) for item in findings]


def _progress(member_id: str) -> AbstractContextManager[Progress | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    return _Bar(member_id)


class _Bar(AbstractContextManager[Progress]):
    def __init__(self, member_id: str) -> None:
        # Imported here: a pipe or a test has no use for it.
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(console=Console(stderr=True), transient=True)
        self._task = self._bars.add_task(member_id)

    def __enter__(self) -> Progress:
        self._bars.start()
        return lambda _, done, total: self._bars.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


def _count(items: int, noun: str) -> str:
    return f"{items} {noun}" if items == 1 else f"{items} {noun}s"
