"""`python -m builder family`: export a family's models, or check that they can be exported.

Owns: the two subcommands and what they print. Does not know: how it is done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from builder.errors import plain_text
from builder.family.check import check_family
from builder.family.export import Exporters, Progress, check_places, write_member
from builder.family.family import Family, load_family
from builder.files import artifact_line


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
    return _export(family, arguments.out, arguments.member, as_json=arguments.json)


def _export(family: Family, folder: Path, member_id: str | None, *, as_json: bool) -> int:
    members = family.members if member_id is None else (family.member(member_id),)
    check_places(family, members, folder)
    exporters = Exporters(family)
    artifacts = []
    for member in members:
        with _progress(member.id) as progress:
            data = exporters.export(member, progress)
        path = write_member(member, folder, data)
        digest = hashlib.sha256(data).hexdigest()
        print(artifact_line(path, len(data), digest), flush=True)
        artifacts.append({"id": member.id, "path": str(path), "bytes": len(data), "sha256": digest})
    print(f"family: exported {_count(len(artifacts), 'model')} to {folder}", file=sys.stderr)
    if as_json:
        print(json.dumps({"family": family.name, "models": artifacts}))
    return 0


def _check(family: Family, *, as_json: bool) -> int:
    findings = check_family(family)
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
