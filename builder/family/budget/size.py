"""Sizes as people write them: `300KB`, `0.6MB`, `512KiB`, `70000`."""

from __future__ import annotations

import re
from decimal import Decimal

PATCH_FRIENDLY = "patch-friendly"
"""Instead of a size: the point that suits most members."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "KIB": 2**10, "MIB": 2**20}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([KM]?I?B)?", re.IGNORECASE)


def check_budget(text: str) -> str:
    """A budget as `family.toml` has it: a size or `patch-friendly`. Raises `ValueError`."""
    if text != PATCH_FRIENDLY:
        parse_size(text)
    return text


def parse_size(text: str) -> int:
    """Bytes, rounded down. Raises `ValueError` with what a size looks like."""
    match = _SIZE.fullmatch(text.strip())
    unit = (match[2] or "").upper() if match else ""
    count = int(Decimal(match[1]) * _UNITS[unit]) if match and unit in _UNITS else 0
    if count < 1:
        raise ValueError(f"{text!r} is no size; write bytes as 70000, 300KB, 0.6MB or 512KiB")
    return count
