"""The table that the Python and the JavaScript reader share: tests/golden/manifests.json."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from pathlib import Path
from typing import Any

TABLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "manifests.json").read_text("utf-8")
)


def value_of(case: dict[str, Any]) -> Any:
    """A case's value; `{repeat, times, after}` is a long text, `{nest}` that many lists within one."""
    match case["value"]:
        case {"repeat": str(text), "times": int(times), **rest}:
            return text * times + rest.get("after", "")
        case {"nest": int(depth)}:
            value: list[Any] = []
            for _ in range(depth - 1):
                value = [value]
            return value
    return case["value"]


def document_of(case: dict[str, Any]) -> dict[str, Any]:
    """The table's good document, spoilt in one place."""
    document: dict[str, Any] = {
        "format": "saguaro-family",
        "version": 1,
        **copy.deepcopy(TABLE["fields"]),
    }
    target: Any = document
    for step in case["path"][:-1]:
        target = target[step]
    target[case["path"][-1]] = value_of(case)
    return document


def good_text() -> str:
    """The good document's canonical text, with an empty release."""
    document = {"format": "saguaro-family", "version": 1, "release": "", **TABLE["fields"]}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"


def seal_text(text: str) -> bytes:
    """The same with a true release, by cutting texts: no writer of JSON has a hand in it."""
    rest = re.sub(r'"release":"",', "", text, count=1).removesuffix("\n")
    release = hashlib.sha256(rest.encode()).hexdigest()
    return text.replace('"release":""', f'"release":"{release}"', 1).encode()
