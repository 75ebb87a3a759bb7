"""Rebuilding patches in Chromium, through the library's worker, as a visitor's browser does.

Owns: `rebuild_seconds`, for the table of `bench.delta`. CPU seconds of the worker's thread, bytes at hand:
the patch, SHA-256 and opening the model; the least of some rounds.
"""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.chromium import launch
from bench.web import give_tokenizer, worker_costs
from builder.cact.reader import read_container
from builder.family.family import load_family
from builder.publish.pack import Options, pack
from builder.publish.pages import default_web_folder
from builder.publish.parts import PART_BYTES_DEFAULT
from builder.publish.serve import SiteServer, serving
from builder.publish.site import open_site

ROUNDS = 3
FAMILY = '[family]\nname = "pairs"\ntitle = "Pairs"\n[base]\ncact = "base.cact"\n'
SPECIALIST = '[[specialists]]\nid = "ID"\nabout = "ID"\ncact = "ID.cact"\n'


def rebuild_seconds(base: Path, targets: dict[str, Path], folder: Path, effort: int) -> dict[str, float]:
    """Seconds by target's name, and under "base" those of opening the base, which needs no patch."""
    ids = {name: f"m{place}" for place, name in enumerate(targets)}
    folder.mkdir()
    for place, path in {"base": base, **{ids[name]: path for name, path in targets.items()}}.items():
        _with_tokenizer(path, folder / f"{place}.cact")
    text = FAMILY + "".join(SPECIALIST.replace("ID", member) for member in ids.values())
    (folder / "family.toml").write_text(text, "utf-8")
    options = Options(PART_BYTES_DEFAULT, 1, folder / "cache", default_web_folder(), effort=effort)
    pack(load_family(folder / "family.toml"), folder / "site", options, lambda step, done, total: None)
    app = open_site(folder / "site").manifest.app.path
    with serving(SiteServer(folder / "site")) as server, sync_playwright() as playwright:
        browser = launch(playwright)
        seconds = {
            name: min(worker_costs(browser, server.url, app, member)["open_s"] for _ in range(ROUNDS))
            for name, member in {"base": "base", **ids}.items()
        }
        browser.close()
    return seconds


def _with_tokenizer(path: Path, out: Path) -> None:
    """A model that was never trained comes without one, and no engine opens that."""
    if read_container(path).tokenizer_blob is None:
        give_tokenizer(path, out)
    else:
        out.write_bytes(path.read_bytes())
