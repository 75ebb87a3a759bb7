"""docs/formats/patch.md agrees with the code: constants, statuses, and the worked example byte for byte.

`python -m tests.delta.test_spec` writes the example anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from builder.delta import apply_patch, layout, make_patch, read_patch_header
from builder.delta.frame import read_segments
from builder.delta.layout import SegmentKind
from tests.delta.tiny_containers import Blob, container

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs" / "formats" / "patch.md"
FORMAT = (ROOT / "engine" / "src" / "patch_format.h").read_text()
START, END = "<!-- example -->\n", "<!-- end -->"


def _number(name: str) -> int:
    found = re.search(rf"#define {name} \(?([0-9]+)u?(?: \* ([0-9]+)u?)?", FORMAT)
    assert found, name
    return int(found[1]) * int(found[2] or 1)


def _example() -> tuple[bytes, bytes]:
    codes, norms = bytearray([0x37] * 64 * 4), b"\x66\x2e" * 4
    base = container(0x05E12A82, [Blob(3, (4, 128), 4, codes + norms), Blob(1, (3,), 0, bytes(6))])
    codes[0], codes[100] = 0x38, 0x47
    target = container(0x05E12A82, [Blob(3, (4, 128), 4, codes + norms), Blob(1, (3,), 0, b"\0\0\1\0\0\0")])
    return base, target


def _dump() -> str:
    """Hex of the patch, one line per field or payload, with what it is."""
    base, target = _example()
    patch = make_patch(base, target)
    header = read_patch_header(patch)
    cuts = [
        *[(8, "magic"), (2, "version"), (2, "flags"), (4, "tag"), (8, "base_bytes"), (8, "target_bytes")],
        *[(32, "base_sha256"), (32, "target_sha256"), (4, "segment_count"), (4, "check")],
    ]
    for segment in read_segments(patch, header):
        cuts.append(
            (segment.field_bytes, f"{segment.kind.name.lower()}: {segment.target_bytes} target bytes")
        )
        for payload in segment.payloads:
            cuts += [(4, "payload size"), (len(payload), "payload")]
    lines, at = [], 0
    for size, what in [*cuts, (layout.TRAILER_BYTES, "trailer")]:
        for start in range(at, at + size, 16):
            piece = patch[start : min(start + 16, at + size)].hex(" ")
            lines.append(f"{start:04x}  {piece:<47}  {what if start == at else ''}".rstrip())
        at += size
    assert at == len(patch)
    return "```\n" + "\n".join(lines) + "\n```\n"


def _spec_parts() -> tuple[str, str, str]:
    before, _, rest = SPEC.read_text().partition(START)
    example, _, after = rest.partition(END)
    return before, example, after


def test_the_worked_example_is_what_the_maker_writes() -> None:
    base, target = _example()
    assert apply_patch(base, make_patch(base, target)) == target
    assert _spec_parts()[1] == _dump()


def test_python_has_the_constants_of_the_engine() -> None:
    assert _number("SG_PATCH_VERSION") == layout.VERSION
    assert _number("SG_PATCH_HEADER_BYTES") == layout.HEADER.size
    assert _number("SG_PATCH_HEADER_CHECKED_BYTES") == layout.HEADER_CHECKED_BYTES
    assert _number("SG_PATCH_TRAILER_BYTES") == layout.TRAILER_BYTES
    assert _number("SG_PATCH_FIELDS_MAX") == layout.FIELDS_MAX
    assert _number("SG_PATCH_PAYLOAD_MAX") == layout.PAYLOAD_MAX
    assert _number("SG_PATCH_GROUP_CODES") == layout.GROUP_CODES
    kinds = dict(re.findall(r"SG_SEGMENT_([A-Z]+) = ([0-9]+)", FORMAT))
    assert kinds == {kind.name: str(kind.value) for kind in SegmentKind}
    assert f"SG_CODER_GUIDED = {layout.CODER_GUIDED}," in FORMAT
    assert f"SG_CODER_SEEDED = {layout.CODER_SEEDED}," in FORMAT
    assert f"SG_CODER_NARROWED = {layout.CODER_NARROWED}," in FORMAT
    assert f"SG_CODER_PREDICTED = {layout.CODER_PREDICTED}," in FORMAT
    assert f"SG_CODER_PREDICTED_SEEDED = {layout.CODER_PREDICTED_SEEDED}," in FORMAT


def test_python_has_the_coders_of_the_page() -> None:
    rows = re.findall(r"^\| (\d) \| [a-z]+ \| ([^|]*) \|", SPEC.read_text(), re.MULTILINE)
    page = {int(kind): tuple(map(int, re.findall(r"\d", coders))) for kind, coders in rows}
    assert page == layout.CODERS


def test_the_page_names_every_patch_status_and_no_other() -> None:
    header = (ROOT / "engine" / "include" / "sg_status.h").read_text()
    statuses = {name.lower() for name in re.findall(r"X\((PATCH_[A-Z_]+),", header)}
    assert set(re.findall(r"`(patch_[a-z_]+)`", SPEC.read_text())) == statuses


if __name__ == "__main__":
    before, _, after = _spec_parts()
    SPEC.write_text(before + START + _dump() + END + after)
