"""The models that the targets open: the golden containers, and one whose vocabulary can spell tool calls."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.grammar.samples import ROOT, make_model

ENVIRONMENT = "SAGUARO_FUZZ_MODELS"
"""The variable in which a target finds the folder (models.h)."""


def write_models(folder: Path) -> Path:
    """Write them as NAME.cact; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted((ROOT / "golden").glob("*.cact")):
        shutil.copy(path, folder)
    (folder / "grammar.cact").write_bytes(make_model())
    return folder
