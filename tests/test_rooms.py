"""The arrows between rooms that CONTRIBUTING.md draws, and torch only where it says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BUILDER = Path(__file__).parents[1] / "builder"

MAY_IMPORT = {
    "cact": set(),
    "runtime": set(),
    "family": {"cact"},
    "family/budget": {"cact", "delta", "family", "reference", "runtime"},
    "delta": {"cact", "runtime"},
    "publish": {"cact", "family", "delta", "runtime"},
    "reference": {"cact", "runtime"},
    "onnx": {"cact"},
    "experts": {"reference"},
}
FOR_ALL = {"errors", "files"}
JOINS_ALL = {"reference/chat_command.py", "reference/chat_views.py", "reference/site_source.py"}
"""They talk to a packed site: they stand above the rooms, as the command line does."""
MAY_IMPORT_TORCH = ("reference/", "experts/")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    allowed = MAY_IMPORT[room] | FOR_ALL | {room}
    rooms_within = [BUILDER / other for other in MAY_IMPORT if other.startswith(f"{room}/")]
    for path in sorted((BUILDER / room).rglob("*.py")):
        if any(within in path.parents for within in rooms_within):
            continue
        name = str(path.relative_to(BUILDER))
        found = {module.split(".")[1] for module in imported(path) if module.startswith("builder.")}
        assert name in JOINS_ALL or found <= allowed, name


def test_only_the_reference_and_the_experts_import_torch() -> None:
    paths = {str(path.relative_to(BUILDER)): path for path in BUILDER.rglob("*.py")}
    importing = [
        name for name, path in paths.items() if any(m.split(".")[0] == "torch" for m in imported(path))
    ]
    assert importing
    assert all(name.startswith(MAY_IMPORT_TORCH) for name in importing)
