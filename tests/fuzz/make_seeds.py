"""Small inputs to start from, one a file in tests/fuzz/seeds: `python -m tests.fuzz.make_seeds`.

The rebuilder's are the golden patches' segments, one for each coder; the maker's describe a container of each
kind of tensor, or are two files as they stand.
"""

from __future__ import annotations

import struct
from pathlib import Path

from builder.delta import layout, read_patch_header

SEEDS = Path(__file__).with_name("seeds")
GOLDEN = Path(__file__).parents[1] / "golden" / "patches"
PIECE_ROOT = 30
# kind - 1 + 4 * (bits - 1), rows - 1, groups - 1, change, two bytes of content: see fuzz_make.c.
TENSORS = {
    "floats": [(0, 20, 0, 30, 1, 1), (1, 20, 0, 30, 1, 2), (3, 9, 0, 10, 1, 3)],
    "widths": [(2 + 4 * bits, 20, 1, 60, 2, bits) for bits in range(5)],
    "huge": [(6, 25, 1, 60, 2, 1)],  # entries of Q beyond 32 bits
    "dropped": [(2, 8, 0, 241, 3, 1), (2, 8, 0, 0, 3, 2), (1, 8, 0, 243, 3, 3), (2, 8, 0, 9, 3, 4)],
}


def seeds() -> dict[str, bytes]:
    """Every seed by its path."""
    found = {}
    for path in sorted(GOLDEN.glob("*.patch")):
        patch = path.read_bytes()
        header = read_patch_header(patch)
        sizes = (header.base_bytes, header.target_bytes, header.segment_count, PIECE_ROOT)
        body = patch[layout.HEADER.size : -layout.TRAILER_BYTES]
        found[f"rebuild/{path.stem}"] = struct.pack("<HHBB", *sizes) + body
    for name, tensors in TENSORS.items():
        numbers = [number for tensor in tensors for number in tensor]
        found |= {f"make/{name}-{effort}": bytes([form, *numbers]) for effort, form in enumerate((0, 7, 15))}
    base = (GOLDEN / "unguided.base.cact").read_bytes()
    found["make/files"] = bytes([128]) + struct.pack("<H", len(base)) + base + base
    return found


def main() -> None:
    """Write all of them."""
    for name, data in seeds().items():
        (SEEDS / name).parent.mkdir(parents=True, exist_ok=True)
        (SEEDS / name).write_bytes(data)


if __name__ == "__main__":
    main()
