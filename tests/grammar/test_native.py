"""The grammar's C under AddressSanitizer and UBSan, over real tools and over damaged ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.grammar.samples import CATALOGUE, nested_literals, one_tool, tool_text


def alternatives(count: int) -> list[dict[str, object]]:
    """Objects that a required property tells apart."""
    return [
        {"type": "object", "properties": {"kind": {"const": f"k{i}"}}, "required": ["kind"]}
        for i in range(count)
    ]


TIGHT = (
    nested_literals(50, 50, 20000),
    nested_literals(50, 2, 0),
    nested_literals(4, 3, 200),
    one_tool({"oneOf": alternatives(8)}),
    one_tool({"oneOf": [{"const": {"const": "é\u0001" * 300}}, {"type": "string"}]}),
    one_tool({"type": "object", "additionalProperties": True, "required": [f"r{i}" for i in range(64)]}),
    one_tool({"type": "string", "pattern": "a" * 120}),
    tool_text(*({"name": f"t{i}"} for i in range(200))),
)
"""What takes much of the compiled grammar's memory for its text."""


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(sanitized, container, tmp_path):
    program = sanitized(tmp_path / "driver", [Path(__file__).with_name("driver.c")])
    (tmp_path / "model.cact").write_bytes(container)
    paths = []
    for i, tools in enumerate([*map(tool_text, CATALOGUE), *TIGHT]):
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(tools, "utf-8")
    done = subprocess.run(
        [program, tmp_path / "model.cact", *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"(\d+) compiled, (\d+) refused\n", done.stdout)
    assert found
    assert int(found[1]) >= len(CATALOGUE)
    assert int(found[2]) > 100
