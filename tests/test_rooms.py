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
MAY_IMPORT_BUDGET = {"family/settings.py", "publish/budgeted.py", "publish/family_command.py"}
MAY_IMPORT_TORCH = {
    f"reference/{name}.py"
    for name in ("layers", "generation_2", "model", "heads", "shared_prefill", "session")
}
"""And `experts/`."""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room_of(module: str) -> str:
    """The innermost room of one of the builder's modules, or its own name where it is in none."""
    _, first, *rest = module.split(".")
    inner = "/".join([first, *rest[:1]])
    return inner if inner in MAY_IMPORT else first


def rooms_of(path: Path) -> set[str]:
    return {room_of(module) for module in imported(path) if module.startswith("builder.")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    allowed = MAY_IMPORT[room] | FOR_ALL | {room}
    rooms_within = [BUILDER / other for other in MAY_IMPORT if other.startswith(f"{room}/")]
    for path in sorted((BUILDER / room).rglob("*.py")):
        if any(within in path.parents for within in rooms_within):
            continue
        name = path.relative_to(BUILDER).as_posix()
        found = rooms_of(path) - ({"family/budget"} if name in MAY_IMPORT_BUDGET else set())
        assert name in JOINS_ALL or found <= allowed, name


def test_who_imports_the_budget_is_listed() -> None:
    budget = BUILDER / "family" / "budget"
    importing = {
        path.relative_to(BUILDER).as_posix()
        for path in BUILDER.rglob("*.py")
        if budget not in path.parents and "family/budget" in rooms_of(path)
    }
    assert importing == MAY_IMPORT_BUDGET


def test_only_the_reference_and_the_experts_import_torch() -> None:
    importing = {
        path.relative_to(BUILDER).as_posix()
        for path in BUILDER.rglob("*.py")
        if any(module.split(".")[0] == "torch" for module in imported(path))
    }
    assert {name for name in importing if not name.startswith("experts/")} == MAY_IMPORT_TORCH
