"""The report page: figures of the site itself, nothing from elsewhere, the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import lzma
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from builder.errors import RefusedError
from builder.publish import generic_tools, report_page
from builder.publish.generic_tools import GenericSize, GenericTool, best_size, found_tools
from builder.publish.report_figures import SHARES, MemberFigure, SiteFigures, TensorFigure, site_figures
from builder.publish.site import open_site
from tests.cli.conftest import Run, run
from tests.publish.conftest import House
from tests.publish.test_commands import pack_words, packable

__all__ = ["packable", "run"]

TOOLS = [GenericTool("half", lambda base, target: len(target) // 2)]
TENSORS = (
    TensorFigure("layers.0.q_proj", 0.42, 8, 5000),
    TensorFigure("layers.1.q_proj", 1.0, 0, 7000),
    TensorFigure("embedding", 0.031, 0, 90),
)
MEMBER = MemberFigure(
    *("home", "Home <b>", "specialist", 1000, 100, GenericSize("half & half", 500)),
    shares=dict(zip(SHARES, (10, 60, 20, 0, 10), strict=True)),
    tensors=TENSORS,
)
BASE = MemberFigure("base", "Base", "base", 1000, 1000, None, {}, ())
FIGURES = SiteFigures("A house", "ab" * 32, ("half & half", "xz"), (BASE, MEMBER))


class Elements(HTMLParser):
    """Every element with its attributes, and the text of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def page() -> Elements:
    return Elements(report_page.report_page(FIGURES).decode())


def test_the_page_has_no_script_and_names_no_other_place(page: Elements) -> None:
    text = report_page.report_page(FIGURES).decode()
    assert {"script", "link", "img", "iframe", "a"}.isdisjoint(tag for tag, _ in page.all)
    assert "://" not in text
    assert "url(" not in text
    names = {name for _, attributes in page.all for name in attributes}
    assert names.isdisjoint({"style", "src", "href"})
    assert not any(name.startswith("on") for name in names)


def test_the_policy_allows_the_pages_own_style_and_nothing_else(page: Elements) -> None:
    text = report_page.report_page(FIGURES).decode()
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(a["content"] for t, a in page.all if a.get("http-equiv") == "Content-Security-Policy")
    rules = [rule.strip() for rule in str(policy).split(";")]
    assert rules == [
        *("default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'", "form-action 'none'")
    ]


def test_bars_are_as_long_as_the_bytes_they_stand_for(page: Elements) -> None:
    widths = [
        (attributes["class"], attributes["width"])
        for tag, attributes in page.all
        if tag == "rect" and attributes.get("x") == "0.00%"
    ]
    assert ("whole", "100.00%") in widths
    assert ("generic", "50.00%") in widths
    assert ("ours", "10.00%") in widths
    assert ("part-0", "10.00%") in widths


def test_each_cell_has_its_rank_and_tells_its_tensor(page: Elements) -> None:
    titles = {a["title"]: a["class"] for t, a in page.all if t == "td"}
    assert titles == {
        "layers.0.q_proj: 42.0% of codes changed, rank 8, 5,000 bytes": "h4",
        "layers.1.q_proj: 100.0% of codes changed, 7,000 bytes": "h9",
    }
    assert "Outside of the layers: embedding 3.1%." in page.texts


def test_a_strangers_names_are_text(page: Elements) -> None:
    assert "b" not in {tag for tag, _ in page.all}
    assert "Home <b> " in page.texts


@pytest.mark.slow
def test_figures_are_of_the_site_and_give_the_same_page_each_time(site: Path) -> None:
    opened, heard = open_site(site), []
    figures = site_figures(opened, TOOLS, heard.append)
    assert heard == [member.id for member in opened.manifest.members]
    assert report_page.report_page(figures) == report_page.report_page(
        site_figures(opened, TOOLS, heard.append)
    )
    base, *others = figures.members
    assert (base.role, base.generic, base.shares) == ("base", None, {})
    for figure, member in zip(others, opened.manifest.members[1:], strict=True):
        assert figure.delivered_bytes == member.delivery.bytes == sum(figure.shares.values())
        assert figure.generic == GenericSize("half", member.bytes // 2)
        assert any(0 < tensor.changed < 1 for tensor in figure.tensors)


@pytest.mark.slow
def test_pack_draws_its_report_beside_the_site(run: Run, packable: House, monkeypatch) -> None:
    monkeypatch.setattr(report_page, "found_tools", lambda: TOOLS)
    path = packable.folder / "report.html"
    code, _, err = run(*pack_words(packable, "--report", path))
    assert code == 0
    assert f"pack: drew {path}\n" in err
    opened = open_site(packable.folder / "site")
    figures = site_figures(opened, TOOLS, lambda member: None)
    assert path.read_bytes() == report_page.report_page(figures)
    assert opened.manifest.release[:12] in path.read_text()


@pytest.mark.parametrize(
    ("place", "code", "sentence"),
    [
        ("site/report.html", 2, "--report: is SITE/report.html, must be outside of --out, which is SITE"),
        ("gone/report.html", 1, "cannot be written"),
        (".", 1, "is a folder, not a file"),
        ("r" * 250, 1, "cannot be written: file name too long"),
    ],
)
def test_a_place_for_the_report_is_refused_before_packing(
    run: Run, packable: House, place: str, code: int, sentence: str
) -> None:
    site = packable.folder / "site"
    if place.startswith("site"):
        site.mkdir()
    found, _, err = run(*pack_words(packable, "--report", packable.folder / place))
    assert found == code
    assert sentence.replace("SITE", str(site)) in err
    assert not (site / "family.json").exists()


@pytest.mark.slow
def test_a_report_replaces_reports_alone(run: Run, packable: House) -> None:
    family = packable.folder / "family.toml"
    before = family.read_bytes()
    code, _, err = run(*pack_words(packable, "--report", family))
    assert (code, family.read_bytes()) == (2, before)
    assert f"--report: is {family}, which is there and is no report; name another file" in err
    report = packable.folder / "report.html"
    assert [run(*pack_words(packable, "--report", report))[0] for _ in range(2)] == [0, 0]


def test_xz_of_the_differences_is_what_xz_says() -> None:
    base, target = os.urandom(500), bytearray(500)
    target[:] = base
    target[7] ^= 1
    differences = bytes((new - old) % 256 for old, new in zip(base, target, strict=True))
    tool = next(tool for tool in found_tools() if tool.name.startswith("xz"))
    assert tool.measure(base, bytes(target)) == len(lzma.compress(differences, preset=6))
    assert tool.measure(base, b"short") == len(lzma.compress(b"short", preset=6))


def test_a_tool_is_found_as_package_else_as_program_else_left_out(monkeypatch, tmp_path: Path) -> None:
    program = tmp_path / "bsdiff"
    program.write_text('#!/bin/sh\nhead -c 33 "$1" > "$3"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    find_spec = generic_tools.importlib.util.find_spec
    assert re.match(r"bsdiff4 [0-9.]+ \(Python\)", found_tools()[0].name)
    monkeypatch.setattr(
        generic_tools.importlib.util, "find_spec", lambda name: None if name == "bsdiff4" else find_spec(name)
    )
    tool = found_tools()[0]
    assert tool.name == "bsdiff (program)"
    assert tool.measure(b"b" * 50, b"t") == 33
    program.write_text('#!/bin/sh\necho "no luck" >&2\nexit 3\n')
    with pytest.raises(RefusedError, match="ended with 3: no luck"):
        tool.measure(b"b", b"t")
    program.unlink()
    monkeypatch.setattr(generic_tools.shutil, "which", lambda name: None)
    assert not any(tool.name.startswith("bsdiff") for tool in found_tools())


def test_the_smallest_of_the_tools_is_named() -> None:
    tools = [*TOOLS, GenericTool("third", lambda base, target: len(target) // 3)]
    assert best_size(tools, b"", bytes(30)) == GenericSize("third", 10)
