"""`verify SITE`: rebuild every model of a site and prove every file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from builder.errors import plain_text, some_names
from builder.files import SHORT_HASH, artifact_line
from builder.publish.verify import Verdict, verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("site", type=Path, metavar="SITE", help="folder that pack wrote")
    parser.add_argument("--json", action="store_true", help="end with one JSON document on a line")


def run(arguments: argparse.Namespace) -> int:
    """Verify; stdout has a line per proved model, stderr a sentence per mismatch."""
    verdict = verify(arguments.site)
    for member_id, byte_count, sha256 in verdict.models:
        print(artifact_line(member_id, byte_count, sha256))
    for from_sha256, byte_count, is_applied in verdict.upgrades:
        how = "applied" if is_applied else "bound; the earlier base is not here"
        print(f"base from {from_sha256[:SHORT_HASH]}  {byte_count:,} bytes  {how}")
    for sentence in verdict.mismatches:
        print(plain_text(sentence), file=sys.stderr)
    if verdict.foreign:
        print(f"verify: not made by pack, left alone: {some_names(verdict.foreign)}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(_document(verdict)))
    counts = ((len(verdict.models), "model"), (verdict.part_count, "part"))
    words = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts]
    bad = len(verdict.mismatches)
    words.append(f"{bad} mismatch{'' if bad == 1 else 'es'}")
    print(f"verify: {', '.join(words)}", file=sys.stderr)
    return 1 if verdict.mismatches else 0


def _document(verdict: Verdict) -> dict[str, object]:
    return {
        "models": [{"id": name, "bytes": size, "sha256": sha256} for name, size, sha256 in verdict.models],
        "upgrades": [
            {"from_sha256": sha256, "bytes": size, "applied": is_applied}
            for sha256, size, is_applied in verdict.upgrades
        ],
        "parts": verdict.part_count,
        "mismatches": verdict.mismatches,
        "foreign": verdict.foreign,
    }
