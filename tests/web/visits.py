"""A visitor in Chromium: a watched context, the chat page in a person's hands, a bare page with a family."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import BrowserContext, Page

from tests.publish.hostile_server import HostileServer

OPEN_FAMILY = """async ([app, options]) => {
  const { openFamily } = await import(new URL(`${app}/family/index.js`, location.href));
  globalThis.events = [];
  const onEvent = (event) => events.push(event);
  globalThis.family = await openFamily('family.json', { retryMs: 5, onEvent, ...options });
}"""

# What browsers do that block a site's data. An empty page before the first one has none of this at all.
DENIED_STORAGE = """
const denied = () => new DOMException('denied', 'SecurityError');
const deny = () => Promise.reject(denied());
for (const name of ['open', 'has', 'keys', 'match', 'delete']) if (globalThis.caches) caches[name] = deny;
for (const name of ['request', 'query']) if (navigator.locks) navigator.locks[name] = deny;
if (navigator.serviceWorker) navigator.serviceWorker.register = deny;
if (navigator.storage) navigator.storage.persist = deny;
for (const name of ['localStorage', 'sessionStorage', 'indexedDB']) {
  Object.defineProperty(globalThis, name, { get() { throw denied(); } });
}
"""

RESPOND = """async ([turns, abortAt, options]) => {
  const [tokens, phases, controller] = [[], [], new AbortController()];
  const seen = (what) => what === abortAt && controller.abort();
  const onToken = (token) => { tokens.push(token); seen(`token ${tokens.length}`); };
  const onProgress = (progress) => { phases.push(progress); seen(progress.phase); };
  try {
    const all = { signal: controller.signal, onToken, onProgress, ...options };
    const { cause, ...answer } = await family.respond(turns, all);
    return { ...answer, cause: cause?.code ?? null, tokens, phases };
  } catch (error) {
    return { rejected: error.code ?? String(error), tokens, phases };
  }
}"""


@dataclass
class Visit:
    """One browser context. What goes wrong in it is noted; `allow` announces what a test causes."""

    context: BrowserContext
    server: HostileServer
    troubles: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.context.on("console", lambda message: self._note_console(message.type, message.text))
        self.context.on("weberror", lambda error: self.troubles.append(f"page error: {error.error}"))
        self.context.on("requestfailed", lambda r: self._note_failure(r.url, r.failure))
        self.context.on("response", lambda r: self._note_status(r.status, r.url))
        self.context.on("request", lambda r: self.hosts.add(r.url.split("/")[2]))

    def _note_failure(self, url: str, failure: str | None) -> None:
        """A page that is left while a worker of it starts takes the worker's script along: no trouble."""
        if not (url.endswith("/worker/worker.js") and failure == "net::ERR_ABORTED"):
            self.troubles.append(f"failed: {url} {failure}")

    def _note_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.troubles.append(f"console {kind}: {text}")

    def _note_status(self, status: int, url: str) -> None:
        if status >= 400:
            self.troubles.append(f"status {status}: {url}")

    def allow(self, *patterns: str) -> None:
        """Announce trouble by regular expressions."""
        self.allowed += patterns

    def unexpected(self) -> list[str]:
        """The trouble that nobody announced."""
        return [words for words in self.troubles if not any(re.search(p, words) for p in self.allowed)]

    def open_chat(self, url: str | None = None) -> Chat:
        """The chat page, ready to be talked to."""
        page = self.context.new_page()
        page.goto(url or self.server.url)
        page.wait_for_selector("#message:not([disabled])")
        return Chat(page)

    def go_offline(self) -> None:
        """No network, and all open pages know. Call it again for a page that was opened since.

        Chromium 150 tells that page only when the emulation changes.
        """
        self.context.set_offline(False)
        self.context.set_offline(True)

    def embed(self, options: dict[str, Any] | None = None, url: str | None = None) -> Embedded:
        """A bare page of the same site that opens the family through the library."""
        page = self.context.new_page()
        page.goto((url or self.server.url) + "embed.html")
        manifest = json.loads((self.server.root / "family.json").read_bytes())
        page.evaluate(OPEN_FAMILY, [manifest["app"]["path"], options or {}])
        return Embedded(page)


@dataclass
class Chat:
    """The chat page."""

    page: Page

    def send(self, text: str) -> None:
        """Type and press Enter."""
        self.page.fill("#message", text)
        self.page.press("#message", "Enter")

    def ask(self, text: str) -> str:
        """Send, and give the complete answer's words."""
        self.send(text)
        return self.answer()

    def answer(self) -> str:
        """The last answer's words, once it is complete."""
        self.page.wait_for_selector(".answer:last-child:not([aria-busy])")
        return self.page.inner_text(".answer:last-child .body")

    def note(self) -> str:
        """Who answered and why."""
        return self.words(".answer:last-child .why summary")

    def words(self, selector: str) -> str:
        """What stands there, spaces that must not break as spaces."""
        return self.page.inner_text(selector).replace("\xa0", " ")

    def wait_for_words(self, selector: str, words: str) -> None:
        """Until they stand there: what shows the family's state is brought up to date once per frame."""
        self.page.wait_for_selector(f'{selector}:has-text("{words}")')

    def wait_for_state(self, member: str, state: str) -> None:
        """Until the panel says so."""
        self.page.wait_for_selector(f'.member[data-id="{member}"][data-state="{state}"]')

    def reload(self) -> None:
        """As with the browser's own button."""
        self.page.reload()
        self.page.wait_for_selector("#message:not([disabled])")


@dataclass
class Embedded:
    """A family on a bare page."""

    page: Page

    def wait_for_workers(self, count: int) -> None:
        """Until the browser has as many, which it tells a little later; the test's own limit ends this."""
        while len(self.page.workers) != count:
            self.page.wait_for_timeout(10)

    def respond(self, turns: list[str], abort_at: str = "", **options: Any) -> dict[str, Any]:
        """The answer with its `tokens` and `phases`, or `rejected` with a code.

        `abort_at` is a phase, or `token 3`, at which the request is aborted.
        """
        return self.page.evaluate(RESPOND, [turns, abort_at, options])

    def call(self, expression: str) -> Any:
        """The value of an expression that may use `family` and `events`."""
        return self.page.evaluate(f"async () => ({expression})")
