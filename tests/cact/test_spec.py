"""docs/formats/cact.md says what the code does: header, limits, order, codes, worked example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.cact import layout
from builder.cact.order import model_slots
from builder.cact.reader import read_container
from tests.cact.hostile import hostile_files
from tests.cact.samples import GOLDEN
from tests.cact.worked_dump import END, START, dump

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "formats" / "cact.md").read_text("utf-8")
STATUS = (ROOT / "engine" / "include" / "sg_status.h").read_text("utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the last table in a section."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|(.*)\|$", section.split("\n\n|")[-1], re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.split("|")] for row in rows[1:] if "---" not in row]


def test_the_worked_example_is_the_golden_file():
    assert TEXT.split(START)[1].split(END)[0] == dump()


@pytest.mark.parametrize(("column", "tag"), [(1, layout.TAG_82), (2, layout.TAG_83), (3, layout.TAG_84)])
def test_the_header_table_is_the_layout(column, tag):
    offsets: dict[str, list[int]] = {}
    for index, name in enumerate(layout.HEADER_FIELDS[tag]):
        offsets.setdefault(name.split("[")[0], []).append(4 * index)
    written = {row[0]: [int(n) for n in row[column].split(" to ")] for row in table("Header") if row[column]}
    assert written == {name: sorted({places[0], places[-1]}) for name, places in offsets.items()}


def test_the_limits_in_the_table_are_the_readers():
    written = {
        row[0]: tuple(int(n) for n in (row[4].split(" to ") * 2)[:2])
        for row in table("Header")
        if row[4] and row[4][0].isdigit()
    }
    assert written == layout.WORD_LIMITS


def test_the_geometry_of_tag_82_in_the_table_is_the_readers():
    written = {row[0]: row[5] for row in table("Header") if row[5]}
    fixed = layout.TAG_82_GEOMETRY
    assert written.pop("orders") == f"{fixed['orders[0]']} {fixed['orders[1]']}"
    assert written.pop("sites") == f"{fixed['sites[0]']} {fixed['sites[1]']}"
    assert {name: float(value) for name, value in written.items()} == {
        name: value for name, value in fixed.items() if "[" not in name
    }


@pytest.mark.parametrize("name", ["tiny83", "tiny84"])
def test_the_order_in_the_table_is_the_readers(name):
    header = read_container(GOLDEN / f"{name}.cact").header
    written = [word for row in table("Canonical order") for word in re.findall(r"[\w.<>*]+", row[0])]
    written = [word.rpartition(".")[2] for word in written]
    order = [slot.name for slot in model_slots(header) if not slot.name.startswith("layers.1.")]
    places = [written.index(name.rpartition(".")[2]) for name in order if not name.startswith("engrams")]
    # The two generations' diagonals share names and stand in two rows; all else ascends.
    rises = [place for name, place in zip(order, places, strict=False) if not re.search(r"\.[db]\d$", name)]
    assert rises == sorted(rises)


def test_every_container_status_is_in_the_rules_and_has_a_hostile_file():
    codes = {name.lower() for name in re.findall(r"X\((CACT_\w+),", STATUS)}
    rules = TEXT.split("## Rules of validity\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(cact_\w+)`", rules)) == codes
    assert {hostile.code for hostile in hostile_files()} == codes
    assert re.findall(r"^(\d+)\. ", rules, re.MULTILINE) == [str(n) for n in range(1, 11)]
