"""Pictures of the page in each state: `python -m tests.web.screenshots [NAME ...]` writes test-results/.

They are for eyes, not for comparison: whoever changes the page looks at them. No names: all of them.
"""

from __future__ import annotations

import argparse
import json
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from builder.cli import main as builder
from builder.publish.serve import serving
from tests.publish.hostile_server import Held, HostileServer, broken, missing
from tests.web.visits import DENIED_STORAGE

ROOT = Path(__file__).parents[2]
OUT = ROOT / "test-results"
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SMALL = {"width": 320, "height": 568}

# Holds back each piece of streamed text, so that an answer can be seen half done.
SLOW_TEXT = """
const own = Object.getOwnPropertyDescriptor(Worker.prototype, 'onmessage');
Object.defineProperty(Worker.prototype, 'onmessage', { set(handler) {
  let delay = 0;
  own.set.call(this, (event) => {
    if (event.data.progress?.phase === 'text') delay += 400;
    setTimeout(() => handler(event), delay);
  });
} });
"""


def ask(page: Page, text: str, *, wait: bool = True) -> None:
    """Type a message and send it."""
    page.fill("#message", text)
    page.keyboard.press("Enter")
    if wait:
        page.wait_for_selector(".answer:last-child:not([aria-busy])")


def empty(page: Page, server: HostileServer) -> None:
    """Nothing was said, nothing was downloaded."""


def downloading(page: Page, server: HostileServer) -> Callable[[], None]:
    """The base is half here; the rest may come after the picture."""
    held = Held()
    base = json.loads((server.root / "family.json").read_bytes())["base"]
    server.on(base["delivery"]["parts"][0]["path"], held, times=1)
    ask(page, "hello there", wait=False)
    page.wait_for_selector("#download-figures:has-text('MB of')")
    return held.go_on.set


def answering(page: Page, server: HostileServer) -> None:
    """A text in the middle of being streamed."""
    page.add_init_script(SLOW_TEXT)
    page.reload()
    ask(page, "what is a saguaro?", wait=False)
    page.wait_for_selector(".answer .body p")
    page.wait_for_timeout(1300)


def tool_card(page: Page, server: HostileServer) -> None:
    """A short conversation with tool calls, one of them explained."""
    for text in ("what is a saguaro?", "turn on the bedroom light", "set a timer for 8 minutes for the eggs"):
        ask(page, text)
    page.click(".answer:last-child summary")


def long_chat(page: Page, server: HostileServer) -> None:
    """More than fits on the screen, many members awake."""
    for text in (
        *("hi", "play Radiohead", "louder please", "book team meeting Saturday 11:00"),
        *("what is in water?", "warm up the garage to 23 degrees please", "the bathroom as well please"),
    ):
        ask(page, text)


def fallback(page: Page, server: HostileServer) -> None:
    """The specialist cannot be had, the base answers."""
    ask(page, "hello")
    server.on("parts/*", missing)
    ask(page, "turn on the bedroom light")


def offline(page: Page, server: HostileServer) -> None:
    """No network, what is here answers."""
    ask(page, "turn on the bedroom light")
    page.context.set_offline(True)
    page.wait_for_selector("[data-topic=offline]")
    ask(page, "what is a saguaro?")


def error(page: Page, server: HostileServer) -> None:
    """Nothing can answer."""
    server.on("parts/*", broken)
    ask(page, "hello there")


def storage_denied(page: Page, server: HostileServer) -> None:
    """The browser lets the page keep nothing."""
    page.add_init_script(DENIED_STORAGE)
    page.reload()
    page.wait_for_selector("[data-topic=storage]")
    ask(page, "thank you")


def no_manifest(page: Page, server: HostileServer) -> None:
    """The list of models cannot be had."""
    server.on("family.json", broken)
    page.evaluate("async () => { for (const name of await caches.keys()) await caches.delete(name); }")
    page.reload()
    page.wait_for_selector("[data-topic=opening]")


def panel(page: Page, server: HostileServer) -> None:
    """The sheet of models on a phone."""
    ask(page, "turn on the bedroom light")
    if page.is_visible(".panel-toggle"):
        page.click(".panel-toggle")


Scene = Callable[[Page, HostileServer], Callable[[], None] | None]
SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        *(empty, downloading, answering, tool_card, long_chat, fallback),
        *(offline, error, storage_denied, no_manifest, panel),
    )
}
LOOKS = [
    ("desktop", DESKTOP, "light"),
    ("desktop-dark", DESKTOP, "dark"),
    ("phone", PHONE, "light"),
    ("phone-dark", PHONE, "dark"),
    ("small", SMALL, "light"),
]


def main() -> None:
    """Pack the demo, show each scene in each look, save the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"scenes to take: {', '.join(SCENES)}")
    names = parser.parse_args().names or list(SCENES)
    launch = runpy.run_path(str(ROOT / "playwright.config.py"))["launch"]
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        builder(["pack", "--out", f"{folder}/site"])
        browser = launch(playwright)
        for name in names:
            for look, viewport, scheme in LOOKS:
                with serving(HostileServer(Path(folder) / "site")) as server:
                    context = browser.new_context(
                        viewport=viewport,
                        color_scheme=scheme,
                        device_scale_factor=1,
                        is_mobile=viewport is not DESKTOP,
                        has_touch=viewport is not DESKTOP,
                    )
                    page = context.new_page()
                    page.goto(server.url)
                    page.wait_for_selector("#message:not([disabled])")
                    after = SCENES[name](page, server)
                    page.wait_for_timeout(250)
                    path = OUT / f"{name}-{look}.png"
                    page.screenshot(path=path)
                    print(path.relative_to(ROOT))
                    if after:
                        after()
                    context.close()
        browser.close()


if __name__ == "__main__":
    main()
