"""What a pack costs a visitor, for people and for programs.

Owns: the table and the JSON document. Knows nothing of: how the site was made. Source: docs/publish.md.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from builder.files import SHORT_HASH
from builder.publish.pack import MemberCost, Report, UpgradeCost

COLUMNS = ("member", "travels as", "whole bytes", "delivered bytes", "share", "changed codes", "parts")


def print_report(report: Report, console: Console) -> None:
    """A table on a terminal, aligned plain lines elsewhere; then the totals."""
    upgrades = [_upgrade_row(cost) for cost in report.upgrades if cost.delivered_bytes is not None]
    rows = [*map(_row, report.members), *upgrades]
    if console.is_terminal:
        table = Table(*COLUMNS[:2], title=report.name, title_justify="left")
        for name in COLUMNS[2:]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print(*totals(report), sep="\n", highlight=False)
    else:
        for line in [*_aligned([COLUMNS, *rows]), *totals(report)]:
            console.file.write(line + "\n")


def totals(report: Report) -> list[str]:
    """What a visitor downloads at first, and for everything; bytes before any compression by the host."""
    models = [f"{cost.id} {cost.delivered_bytes:,}" for cost in report.members if cost.role != "specialist"]
    page = f"page {report.page_bytes + report.manifest_bytes:,}, engine {report.engine_bytes:,}"
    share = report.family_bytes / report.whole_bytes
    return [
        f"first visit: {report.first_visit_bytes:,} bytes ({', '.join([page, *models])})",
        f"whole family: {report.family_bytes:,} bytes, {share:.1%} of {report.whole_bytes:,} as whole files",
    ]


def report_document(report: Report) -> dict[str, object]:
    """The `--json` document; equal inputs give an equal document but for `steps` and `files`."""
    return {
        "site": str(report.site),
        "name": report.name,
        "release": report.release,
        "members": [
            {
                "id": cost.id,
                "role": cost.role,
                "kind": cost.kind,
                "bytes": cost.whole_bytes,
                "delivered_bytes": cost.delivered_bytes,
                "share": round(cost.share, 4),
                "changed_codes": cost.changed_codes,
                "lossy": cost.is_lossy,
                "parts": cost.part_count,
            }
            for cost in report.members
        ],
        "upgrades": [
            {
                "previous": cost.previous,
                "from_sha256": cost.from_sha256,
                "bytes": cost.whole_bytes,
                "delivered_bytes": cost.delivered_bytes,
                "share": None if cost.share is None else round(cost.share, 4),
                "changed_codes": cost.changed_codes,
                "parts": cost.part_count,
                "note": cost.note,
            }
            for cost in report.upgrades
        ],
        "totals": {
            "first_visit_bytes": report.first_visit_bytes,
            "family_bytes": report.family_bytes,
            "whole_bytes": report.whole_bytes,
            "page_bytes": report.page_bytes,
            "engine_bytes": report.engine_bytes,
            "manifest_bytes": report.manifest_bytes,
        },
        "steps": {"made": list(report.made), "reused": list(report.reused)},
        "files": {
            "written": report.written.new,
            "kept": report.written.kept,
            "removed": report.written.removed,
        },
    }


def _row(cost: MemberCost) -> tuple[str, ...]:
    return (
        cost.id,
        f"{cost.kind}, lossy" if cost.is_lossy else cost.kind,
        f"{cost.whole_bytes:,}",
        f"{cost.delivered_bytes:,}",
        f"{cost.share:.1%}",
        "" if cost.role == "base" else f"{cost.changed_codes:.1%}",
        str(cost.part_count),
    )


def _upgrade_row(cost: UpgradeCost) -> tuple[str, ...]:
    changed_codes = "" if cost.changed_codes is None else f"{cost.changed_codes:.1%}"
    return (
        f"base from {cost.from_sha256[:SHORT_HASH]}",
        "patch",
        f"{cost.whole_bytes:,}",
        f"{cost.delivered_bytes:,}",
        f"{cost.share:.1%}",
        changed_codes,
        str(cost.part_count),
    )


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
