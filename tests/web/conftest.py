"""Chromium, packed sites, hostile servers. A visit fails its test for trouble that was not announced."""

from __future__ import annotations

import runpy
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from builder.family.family import load_family
from builder.publish.pack import Options, pack
from builder.publish.pages import default_web_folder
from builder.publish.serve import serving
from tests.conftest import DEMO
from tests.publish.hostile_server import HostileServer
from tests.web.visits import Visit

CONFIG = Path(__file__).parents[2] / "playwright.config.py"
PART_BYTES = 128 * 1024
"""Small parts: the demo's base travels in thirteen, a patch in two, so that a download can be half done."""
INSECURE_HOST = "saguaro.test"
"""A name that leads to this machine and that no browser takes for a secure origin."""
EMBED = "<!doctype html><html lang=en><meta charset=utf-8><title>Embedded</title><link rel=icon href=data:>"

PackSite = Callable[..., Path]
MakeVisit = Callable[..., Visit]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launch = runpy.run_path(str(CONFIG))["launch"]
        browser = launch(playwright, args=[f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pack_site(demo_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> PackSite:
    """Packs the demo family into `out` (a new folder if absent); another `title` makes another release."""
    work = tmp_path_factory.mktemp("family")
    shutil.copytree(DEMO, work, dirs_exist_ok=True)
    shutil.copytree(demo_cache, work / "cache")
    toml = (work / "family.toml").read_text("utf-8")
    assert 'title = "A small house"' in toml

    def make(out: Path | None = None, title: str = "A small house", *, keep_previous: bool = True) -> Path:
        out = out or tmp_path_factory.mktemp("site") / "site"
        (work / "family.toml").write_text(toml.replace("A small house", title), "utf-8")
        options = Options(PART_BYTES, 2, work / "cache", default_web_folder(), keep_previous)
        pack(load_family(work / "family.toml"), out, options, lambda step, done, total: None)
        (out / "embed.html").write_text(EMBED, "utf-8")
        return out

    return make


@pytest.fixture(scope="session")
def packed(pack_site: PackSite) -> Path:
    """The demo's site; tests that change it take `site`."""
    return pack_site()


@pytest.fixture
def site(packed: Path, tmp_path: Path) -> Path:
    """A copy of the demo's site, to be spoilt."""
    return Path(shutil.copytree(packed, tmp_path / "site"))


@pytest.fixture
def serve() -> Iterator[Callable[..., HostileServer]]:
    """Starts servers that end with the test."""
    with ExitStack() as stack:
        yield lambda root, prefix="/": stack.enter_context(serving(HostileServer(root, prefix)))


@pytest.fixture
def server(packed: Path, serve: Callable[..., HostileServer]) -> HostileServer:
    """The demo's site at the root of a server."""
    return serve(packed)


@pytest.fixture
def visit(browser: Browser, server: HostileServer) -> Iterator[MakeVisit]:
    """Makes watched contexts; another `server` may be given, other options go to `new_context`."""
    visits: list[Visit] = []

    def make(at: HostileServer | None = None, **options: object) -> Visit:
        context = browser.new_context(**options)
        context.set_default_timeout(60_000)
        visits.append(Visit(context, at or server))
        return visits[-1]

    yield make
    unexpected = [words for visit in visits for words in visit.unexpected()]
    for made in visits:
        made.context.close()
    assert not unexpected, "\n".join(unexpected)
