"""Canonical JSON: one text, and so one hash, per document.

Owns: the byte form over which hashes of JSON documents are taken, the same in Python and in JavaScript
(`JSON.stringify` with sorted keys). Knows nothing of: manifests. Source: docs/formats/manifest.md, "release".
"""

from __future__ import annotations

import hashlib
import json

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# Beyond these a JavaScript number is not exact, or is written in another way than Python writes it.
NUMBER_LIMIT = 2**53
DECIMALS_MAX = 4


def canonical_json(value: Json) -> bytes:
    """UTF-8 with sorted keys and no spaces; a number is whole, or a decimal with at most four places.

    Raises ValueError for a number that two languages would write differently, and for a lone surrogate.
    """
    text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8")


def canonical_sha256(value: Json) -> str:
    """Lower-case hex SHA-256 of the canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _utf_16(key: str) -> bytes:
    """JavaScript sorts texts by their UTF-16 units; Python's own order differs beyond the basic plane."""
    return key.encode("utf-16-be", "surrogatepass")


def _plain(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value, key=_utf_16)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if not abs(value) <= NUMBER_LIMIT:
        raise ValueError(f"the number {value!r} is not within 2^53 of zero")
    if value == int(value):
        return int(value)
    if value != round(value, DECIMALS_MAX):
        raise ValueError(f"the number {value!r} has more than {DECIMALS_MAX} decimals")
    return value
