"""A web server with the faults that real hosts have, for tests of everything that downloads.

Each fault is a function `(handler, path) -> None` that answers one request; `path` is the file that was asked
for. `HostileServer.on(pattern, fault, times=None)` turns one on for the site paths that match. Nothing here
sleeps: `Held` waits for the test to say go on.
"""

from __future__ import annotations

import fnmatch
import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from builder.publish.serve import CONTENT_TYPES, OTHER_CONTENT, SiteHandler, SiteServer, site_path

HTML_PAGE = (
    b"<!doctype html><title>Not here</title><p>This host answers every address with its start page.</p>\n"
)
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)

Fault = Callable[["HostileHandler", Path], None]


@dataclass(frozen=True)
class Seen:
    """One request that arrived: `path` is relative to the site, `range` is the header or None."""

    method: str
    path: str
    range: str | None


@dataclass
class Rule:
    """A fault, the paths that it is for, and how often it still strikes (None: always)."""

    pattern: str
    fault: Fault
    left: int | None


class HostileHandler(SiteHandler):
    """Answers as a good server does, unless a rule matches."""

    server: HostileServer

    def answer(self) -> None:
        name = urlsplit(self.path).path.removeprefix(self.server.prefix)
        self.server.seen.append(Seen(self.command, name, self.headers.get("Range")))
        fault = self.server.take_fault(name)
        path = site_path(self.server.root, self.server.prefix, self.path)
        if fault is None or path is None:
            super().answer()
        else:
            fault(self, path)

    def reply(self, body: bytes, headers: dict[str, str], status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send exactly these headers and bytes; the connection ends when they say too little to keep it."""
        self.send_head(status, headers)
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection |= headers.get("Content-Length") != str(len(body))

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Faults are meant; nothing to report."""


class HostileServer(SiteServer):
    """A `SiteServer` with rules; `seen` lists every request in order of arrival."""

    def __init__(self, root: Path, prefix: str = "/") -> None:
        self.seen: list[Seen] = []
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        super().__init__(root, prefix=prefix, handler=HostileHandler)

    def on(self, pattern: str, fault: Fault, times: int | None = None) -> None:
        """Answer requests for site paths like `parts/*` with `fault`; later rules go first."""
        with self._lock:
            self._rules.insert(0, Rule(pattern, fault, times))

    def heal(self) -> None:
        """Be a good server again."""
        with self._lock:
            self._rules.clear()

    def take_fault(self, name: str) -> Fault | None:
        """The fault that answers this request, counted."""
        with self._lock:
            for rule in self._rules:
                if rule.left != 0 and fnmatch.fnmatchcase(name, rule.pattern):
                    if rule.left is not None:
                        rule.left -= 1
                    return rule.fault
        return None


def _headers(path: Path, byte_count: int) -> dict[str, str]:
    content = CONTENT_TYPES.get(path.suffix, OTHER_CONTENT)
    return {"Content-Type": content, "Content-Length": str(byte_count)}


def gzipped(handler: HostileHandler, path: Path) -> None:
    """Content-Encoding: gzip on everything, Content-Length of the compressed body (GitHub Pages)."""
    body = gzip.compress(path.read_bytes(), mtime=0)
    handler.reply(body, _headers(path, len(body)) | {"Content-Encoding": "gzip"})


def html_page(handler: HostileHandler, path: Path) -> None:
    """Status 200 and an HTML page in the place of the file."""
    handler.reply(HTML_PAGE, {"Content-Type": "text/html", "Content-Length": str(len(HTML_PAGE))})


def lfs_pointer(handler: HostileHandler, path: Path) -> None:
    """What a host sends that does not know Git LFS."""
    handler.reply(LFS_POINTER, _headers(path, len(LFS_POINTER)))


def truncated(handler: HostileHandler, path: Path) -> None:
    """Half of the file, with headers that say that it is all."""
    body = path.read_bytes()[: path.stat().st_size // 2]
    handler.reply(body, _headers(path, len(body)))


def flipped(handler: HostileHandler, path: Path) -> None:
    """The right size, one bit wrong in the middle."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    handler.reply(bytes(body), _headers(path, len(body)))


def missing(handler: HostileHandler, path: Path) -> None:
    """Status 404."""
    handler.reply(b"gone\n", _headers(path, 5), HTTPStatus.NOT_FOUND)


def broken(handler: HostileHandler, path: Path) -> None:
    """Status 500; with `times=1` a server that recovers."""
    handler.reply(b"oops\n", _headers(path, 5), HTTPStatus.INTERNAL_SERVER_ERROR)


def without_length(handler: HostileHandler, path: Path) -> None:
    """No Content-Length; the end of the connection is the end of the file."""
    headers = _headers(path, 0)
    del headers["Content-Length"]
    handler.reply(path.read_bytes(), headers | {"Connection": "close"})


def range_ignored(handler: HostileHandler, path: Path) -> None:
    """The whole file with status 200, whatever range was asked for."""
    body = path.read_bytes()
    handler.reply(body, _headers(path, len(body)))


def cut_at(percent: int) -> Fault:
    """The true Content-Length, then the connection ends after this share of the body."""

    def fault(handler: HostileHandler, path: Path) -> None:
        body = path.read_bytes()
        handler.reply(body[: len(body) * percent // 100], _headers(path, len(body)))

    return fault


@dataclass
class Held:
    """Sends half of the file, says so, and sends the rest when the test lets it go."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(self, handler: HostileHandler, path: Path) -> None:
        body = path.read_bytes()
        half = len(body) // 2
        handler.send_head(HTTPStatus.OK, _headers(path, len(body)))
        handler.wfile.write(body[:half])
        handler.wfile.flush()
        self.reached.set()
        self.go_on.wait(timeout=60)
        handler.wfile.write(body[half:])
