"""The report as one static page: no script, nothing from elsewhere, the same bytes for the same figures.

Owns: HTML, and where the page may lie. Does not know: how figures are measured. Bars are SVG, whose sizes are
attributes: the page's policy allows its own style sheet alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from builder.errors import UsageError
from builder.files import SHORT_HASH, read_regular, try_target, write_whole
from builder.publish.generic_tools import found_tools
from builder.publish.report_figures import (
    SHARES,
    MemberFigure,
    SiteFigures,
    TensorFigure,
    figure_ids,
    site_figures,
)
from builder.publish.site import open_site

HEAT_STEPS = 10
LAYER = re.compile(r"layers\.(\d+)\.(\w+?)(?:_proj)?$")


def check_report_place(path: Path, site: Path) -> None:
    """Raise RefusedError or UsageError if the report cannot be written here, would be published, or would
    take the place of a file that is no report: nothing that the family is made of may be lost.
    """
    try_target(path)
    if path.exists() and not read_regular(path).startswith(_resource("report_page.html")[:80].encode()):
        raise UsageError(f"--report: is {path}, which is there and is no report; name another file")
    if path.resolve().is_relative_to(site.resolve()):
        raise UsageError(f"--report: is {path}, must be outside of --out, which is {site}")


def write_report_page(
    site: Path, path: Path, earlier: Mapping[str, bytes], progress: Callable[[str, int, int], None]
) -> None:
    """Measure a packed site and write the page; `earlier` are bases that upgrades start from, by SHA-256.

    `progress` hears of each member and upgrade.
    """
    opened = open_site(site)
    ids = figure_ids(opened.manifest)
    figures = site_figures(
        opened, found_tools(), lambda name: progress(f"report {name}", ids.index(name), len(ids)), earlier
    )
    write_whole(path, report_page(figures))


def report_page(figures: SiteFigures) -> bytes:
    """The page, in UTF-8."""
    style = _resource("report_page.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    drawn = [*figures.members, *figures.upgrades]
    patched = [figure for figure in drawn if figure.shares]
    page = Template(_resource("report_page.html")).substitute(
        style=style,
        style_integrity=f"sha256-{digest}",
        title=escape(figures.title),
        lead=_lead(figures),
        fine=f"{len(figures.members)} models, release {figures.release[:SHORT_HASH]}",
        sizes=_lines(map(_sizes, drawn)),
        tools=f"Generic tools that were found: {escape('; '.join(figures.tools))}. Their best is shown.",
        part_key=_lines(_key(name, f"part-{place}") for place, name in enumerate(SHARES)),
        parts=_lines(map(_parts, patched)) or "<p>Nothing travels as a patch.</p>",
        scale=_scale(),
        maps=_lines(map(_map, patched)) or "<p>Nothing travels as a patch.</p>",
    )
    return page.encode()


def _resource(name: str) -> str:
    return resources.files("builder.publish").joinpath(name).read_text("utf-8")


def _lines(items: Iterable[str]) -> str:
    return "\n".join(items)


def _lead(figures: SiteFigures) -> str:
    whole = sum(member.whole_bytes for member in figures.members)
    delivered = sum(member.delivered_bytes for member in figures.members)
    return (
        f"The family travels in {delivered:,} bytes, {delivered / whole:.1%} of the {whole:,} of its models "
        "as whole files. Every model is rebuilt from that byte for byte."
    )


def _sizes(member: MemberFigure) -> str:
    """One member's bars, all on the scale of its whole file."""
    bars = [_bar_row(member.whole_bytes, member.whole_bytes, "whole", "whole file")]
    if member.generic:
        name = f"best generic tool, {member.generic.tool}"
        bars.append(_bar_row(member.generic.byte_count, member.whole_bytes, "generic", name))
    bars.append(_bar_row(member.delivered_bytes, member.whole_bytes, "ours", "delivered"))
    note = f"{member.delivered_bytes / member.whole_bytes:.1%} of the file"
    if member.generic:
        note += f", {member.delivered_bytes / member.generic.byte_count:.1%} of {member.generic.tool}"
    elif member.role == "upgrade":
        note += ", taken over from a release that has the same base"
    else:
        note = "travels whole"
    return f'<div class="member">{_title(member, note)}<div class="bars">{"".join(bars)}</div></div>'


def _title(member: MemberFigure, note: str) -> str:
    is_plain = member.role in ("specialist", member.title.lower())
    role = "" if is_plain else f" ({member.role})"
    return f"<h3>{escape(member.title)}{role} <small>{escape(note)}</small></h3>"


def _bar_row(byte_count: int, whole_bytes: int, kind: str, name: str) -> str:
    label = f"{name}: {byte_count:,} bytes"
    mine = ' class="mine"' if kind == "ours" else ""
    return (
        _svg("bar", label, [(100 * byte_count / whole_bytes, kind, name)])
        + f"<span{mine}>{byte_count:,}</span>"
    )


def _svg(kind: str, label: str, pieces: list[tuple[float, str, str]]) -> str:
    """Rectangles side by side, each with its width in percent, class and title."""
    rects, at = [], 0.0
    for width, name, title in pieces:
        place = f'x="{at:.2f}%" width="{width:.2f}%" height="100%"'
        rects.append(f'<rect class="{name}" {place}><title>{escape(title)}</title></rect>')
        at += width
    return f'<svg class="{kind}" role="img" aria-label="{escape(label)}">{"".join(rects)}</svg>'


def _key(name: str, kind: str) -> str:
    swatch = f'<svg class="swatch" aria-hidden="true"><rect class="{kind}" width="100%" height="100%"/></svg>'
    return f"<li>{swatch}{escape(name)}</li>"


def _parts(member: MemberFigure) -> str:
    total = sum(member.shares.values())
    texts = {name: f"{name} {count:,}" for name, count in member.shares.items()}
    pieces = [
        (100 * count / total, f"part-{place}", f"{texts[name]} bytes, {count / total:.1%}")
        for place, (name, count) in enumerate(member.shares.items())
    ]
    text = ", ".join(texts.values())
    title = _title(member, f"{total:,} bytes")
    return f'<div class="member">{title}{_svg("bar stack", text, pieces)}<p>{text}</p></div>'


def _scale() -> str:
    pieces = [(100 / HEAT_STEPS, f"h{step}", "") for step in range(HEAT_STEPS)]
    return _svg("steps", "from pale to deep", pieces).replace("<title></title>", "")


def _map(member: MemberFigure) -> str:
    """A cell for each projection of each layer; tensors outside of layers are told below."""
    cells: dict[tuple[int, str], TensorFigure] = {}
    others = []
    for tensor in member.tensors:
        if found := LAYER.match(tensor.name):
            cells[int(found[1]), found[2]] = tensor
        elif tensor.changed:
            others.append(f"{tensor.name} {tensor.changed:.1%}")
    columns = list(dict.fromkeys(name for _, name in cells))
    layers = sorted({layer for layer, _ in cells})
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    rows = "".join(
        f'<tr><th scope="row">{layer}</th>'
        + "".join(_cell(cells.get((layer, name))) for name in columns)
        + "</tr>"
        for layer in layers
    )
    more = f"<p>Outside of the layers: {escape(', '.join(others))}.</p>" if others else ""
    table = f'<div class="wide"><table><tr><th scope="col">layer</th>{head}</tr>{rows}</table></div>'
    return f'<div class="map">{_title(member, "")}{table}{more}</div>'


def _cell(tensor: TensorFigure | None) -> str:
    if tensor is None:
        return "<td></td>"
    step = min(int(tensor.changed * HEAT_STEPS), HEAT_STEPS - 1)
    rank = f", rank {tensor.rank}" if tensor.rank else ""
    title = f"{tensor.name}: {tensor.changed:.1%} of codes changed{rank}, {tensor.patch_bytes:,} bytes"
    return f'<td class="h{step}" title="{escape(title)}">{tensor.rank or ""}</td>'
