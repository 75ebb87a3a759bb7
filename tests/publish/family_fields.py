"""Manifest fields for tests: small, valid, and made anew on every call so that a test may break them."""

from __future__ import annotations

import hashlib
from typing import Any


def sha(text: str) -> str:
    """A hash that is nobody's by accident."""
    return hashlib.sha256(text.encode()).hexdigest()


def part(name: str, byte_count: int) -> dict[str, Any]:
    """One part's entry."""
    return {"path": f"parts/{sha(name)}.bin", "bytes": byte_count, "sha256": sha(name)}


def member(member_id: str, **changes: Any) -> dict[str, Any]:
    """A specialist that is delivered as a patch of two parts."""
    fields: dict[str, Any] = {
        "id": member_id,
        "title": member_id.title(),
        "about": "does things",
        "bytes": 1000,
        "sha256": sha(member_id),
        "delivery": {
            "kind": "patch",
            "bytes": 90,
            "sha256": sha(member_id + " patch"),
            "parts": [part(member_id + " 0", 60), part(member_id + " 1", 30)],
        },
        "prompt": {"system": "", "tools": '[{"name":"do"}]', "context_turns": 0},
        "max_new_tokens": 64,
        "changed_codes": 0.5,
    }
    return fields | changes


def upgrade(name: str, **changes: Any) -> dict[str, Any]:
    """A patch of one part from an earlier base that was delivered in two."""
    pieces = [{"bytes": size, "sha256": sha(f"{name} {size}")} for size in (600, 300)]
    patch = part(name + " patch", 80)
    fields: dict[str, Any] = {
        "from_sha256": sha(name),
        "from_bytes": 900,
        "from_parts": pieces,
        "delivery": {"kind": "patch", "bytes": 80, "sha256": patch["sha256"], "parts": [patch]},
    }
    return fields | changes


def family_fields() -> dict[str, Any]:
    """What `write_manifest` takes: a base of one part, a router, two specialists."""
    whole = {"kind": "whole", "bytes": 1000, "parts": [{**part("base", 1000)}]}
    base = member("base", delivery=whole, upgrades=[upgrade("older"), upgrade("oldest")])
    del base["changed_codes"]
    router = member("router")
    del router["changed_codes"], router["max_new_tokens"]
    return {
        "name": "tiny",
        "title": "A tiny family",
        "container": {"tag": "0x05e12a84", "generation": 3},
        "numerics": "exact",
        "app": {"path": f"app/{sha('app')[:12]}", "sha256": sha("app")},
        "engine": {
            "path": f"engine.{sha('engine')[:12]}.wasm",
            "bytes": 5000,
            "sha256": sha("engine"),
            "abi": 2,
            "relaxed": {
                "path": f"engine.{sha('relaxed')[:12]}.wasm",
                "bytes": 6000,
                "sha256": sha("relaxed"),
            },
        },
        "base": base,
        "router": router,
        "specialists": [member("home"), member("media")],
        "examples": ["hello"],
    }
