"""The cases that Python and JavaScript share (tests/golden/prompts.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "prompts.json").read_text("utf-8")
)


def named(section: str) -> dict[str, Any]:
    """Arguments for `pytest.mark.parametrize`: the cases of a section, each under its own name."""
    cases = CASES[section]
    return {"argvalues": cases, "ids": [case.get("name", str(i)) for i, case in enumerate(cases)]}
