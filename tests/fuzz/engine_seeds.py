"""Inputs to start from for the targets of the engine: `python -m tests.fuzz.engine_seeds` writes them.

Owns: the seeds of loader, tokenizer, grammar and session. Knows nothing of: patches (make_seeds.py).
"""

from __future__ import annotations

import json
import struct

from builder.cact.layout import TAG_82
from tests.fuzz.make_seeds import SEEDS

WHOLE_FILE = 3
BYTE_PIECES, DUMMY_PREFIX = 1, 2
CODEBOOKS = struct.pack("<28f", *(level for count in (4, 8, 16) for level in range(count)))
FIRST_RECORD_82 = struct.pack("<BBH4IQQII", 3, 2, 0, 8192, 512, 0, 0, 192, 8192 * 264, 128, 4)
# u8 form (1, 2, 4, 8 bytes; 4: new size), u16 place, value: see fuzz_container.c.
EDITS = {
    "window": struct.pack("<BHI", 2, 12, 3),
    "long": struct.pack("<BHI", 2, 48, 1 << 20),
    "cut": struct.pack("<BH", 4, 9000),
    "kind": struct.pack("<BHB", 0, 308, 1),
    "offset": struct.pack("<BHQ", 3, 328, 1 << 63),
}
PIECES = (
    (-1, 0, "ab"),
    (-2, 0, "▁a"),
    (-3, 0, "▁"),
    (0, 3, "<a"),
    (0, 3, "<ab>"),
    (-4, 0, "é"),
    (-1, 0, "bb"),
)
TEXTS = {"plain": "ab bb é", "markers": "<ab><a b<ab", "spaces": "  ▁ a💡"}
STEPS = bytes(range(40))
SCHEMAS = {
    "plain": {"type": "object", "properties": {"v": {"enum": ["on", "off", 1]}}, "required": ["v"]},
    "numbers": {
        "properties": {
            "i": {"type": "integer", "minimum": -3, "multipleOf": 7},
            "n": {"type": "number", "maximum": 2.5},
        }
    },
    "pattern": {"properties": {"p": {"type": "string", "pattern": "^(a|bc)*[0-9]{2,3}$", "maxLength": 9}}},
    "lists": {"properties": {"l": {"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "x": True}},
    "choices": {
        "properties": {"c": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}},
        "$defs": {"d": {"properties": {"d": {"$ref": "#/$defs/d"}}}},
    },
}
# Operation and arguments: see fuzz_calls.c.
CALLS = {
    "mark-before-listening": bytes([2, 8, 1, 0, 4, 1, 2, 3, 4, 3, 0, 5, 6, 7, 8, 9, 10]),
    "append": bytes([0, 3, 1, 2, 3, 5, 0, 9, 6, 200, 120, 3, 0, 1, 7]),
    "rewind": bytes([0, 2, 1, 2, 2, 0, 2, 3, 4, 3, 0, 1, 9, 1, 2, 5, 6, 3, 10, 1]),
    "heads": bytes([8, 1, 8, 2, 0, 4, 1, 2, 3, 4, 9, 1, 9, 2, 2, 0, 1, 7, 3, 9, 1]),
    "pins": bytes([5, 2, 0, 20, *range(20), 2, 0, 20, *range(20), 4, 0, 9, *range(9)]),
}


def engine_seeds() -> dict[str, bytes]:
    """Every seed by its path."""
    found = {}
    for choice in range(WHOLE_FILE):
        found |= {
            f"container/file-{choice}-{depth}": bytes([choice, depth, 20, choice % 2]) for depth in (0, 2)
        }
    found |= {f"container/{name}": bytes([1, 0, 30, 1]) + edit for name, edit in EDITS.items()}
    header_82 = struct.pack("<5I", TAG_82, 600, 28, 256, 8)
    found["container/tag-82"] = bytes([WHOLE_FILE, 0, 0, 0]) + header_82 + CODEBOOKS + FIRST_RECORD_82 * 8
    pieces = b"".join(_piece(*piece) for piece in PIECES)
    for name, text in TEXTS.items():
        for form in (0, BYTE_PIECES, BYTE_PIECES | DUMMY_PREFIX):
            data = text.encode()
            found[f"tokenizer/{name}-{form}"] = bytes([form, len(data)]) + data + pieces
    for name, schema in SCHEMAS.items():
        tools = json.dumps([{"name": "t", "parameters": schema}], separators=(",", ":"))
        found[f"grammar/{name}"] = bytes([40, 1]) + tools.encode() + b"\0" + STEPS
    for name, calls in CALLS.items():
        for form in range(WHOLE_FILE):
            found[f"calls/{name}-{form}"] = bytes([form, 40, form % 2]) + calls
    return found


def _piece(score: int, kind: int, text: str) -> bytes:
    data = text.encode()
    return struct.pack("<bBB", score, kind, len(data)) + data


def main() -> None:
    """Write all of them."""
    for name, data in engine_seeds().items():
        (SEEDS / name).parent.mkdir(parents=True, exist_ok=True)
        (SEEDS / name).write_bytes(data)


if __name__ == "__main__":
    main()
