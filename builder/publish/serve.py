"""The development server: what a plain static host does, and nothing more.

Owns: mapping a URL to a file inside the site, content types, single ranges, validators, caching headers.
Knows nothing of: manifests, models. No special header is sent that GitHub Pages could not send.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from builder.errors import plain_text
from builder.publish.folder import IMMUTABLE

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".webmanifest": "application/manifest+json; charset=utf-8",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
OTHER_CONTENT = "application/octet-stream"
FOR_EVER = "public, max-age=31536000, immutable"
ASK_EACH_TIME = "no-cache"
RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True)
class ByteRange:
    """First and last byte, both included."""

    first: int
    last: int

    @property
    def byte_count(self) -> int:
        """Length of the range."""
        return self.last - self.first + 1


def site_path(root: Path, prefix: str, url: str) -> Path | None:
    """The file that a request's target names, None if there is none inside `root` that may be served.

    Names that start with a dot are never served, nor is a symbolic link that leads out of `root`.
    Raises ValueError for a target that is no URL.
    """
    path = unquote(urlsplit(url).path, errors="replace")
    if not path.startswith(prefix):
        return None
    steps = path.removeprefix(prefix).split("/")
    if steps[-1] == "":
        steps[-1] = "index.html"
    if any(step == "" or step.startswith(".") or re.search(r"[\\\x00:]", step) for step in steps):
        return None
    try:
        found = root.joinpath(*steps).resolve()
        return found if found.is_relative_to(root.resolve()) and found.is_file() else None
    except (OSError, RuntimeError):  # A name that is too long, a loop of links.
        return None


def parse_range(header: str, size: int) -> ByteRange | None:
    """The one range that a `Range` header asks for, None if it is to be ignored (RFC 9110, 14.2).

    Raises ValueError for a range that lies outside of the file.
    """
    match = RANGE.fullmatch(header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        first, last = size - min(int(match[2]), size), size - 1
    else:
        first, last = int(match[1]), min(int(match[2]), size - 1) if match[2] else size - 1
        if match[2] and int(match[2]) < first:
            return None
    if first >= size or first > last:
        raise ValueError("the range lies outside of the file")
    return ByteRange(first, last)


class SiteHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for one site."""

    protocol_version = "HTTP/1.1"
    server_version = "Saguaro"
    sys_version = ""
    server: SiteServer

    def do_GET(self) -> None:
        """Answer with the file, a range of it, or a status that says why not."""
        self.answer()

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.answer()

    def answer(self) -> None:
        """Answer the present request."""
        prefix = self.server.prefix
        try:
            is_folder = urlsplit(self.path).path == prefix.rstrip("/") != ""
            path = site_path(self.server.root, prefix, self.path)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        if is_folder:
            self._refuse(HTTPStatus.MOVED_PERMANENTLY, {"Location": prefix})
            return
        if path is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with path.open("rb") as file:
            self._send_file(path, file)

    def _send_file(self, path: Path, file: BinaryIO) -> None:
        state = os.fstat(file.fileno())
        size = state.st_size
        headers = self._describe(path, f'"{state.st_mtime_ns:x}-{size:x}"')
        if self._matches(self.headers.get("If-None-Match"), headers["ETag"]):
            self.send_head(HTTPStatus.NOT_MODIFIED, headers)
            return
        try:
            wanted = self._wanted_range(headers["ETag"], size)
        except ValueError:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"})
            return
        if wanted is None:
            status, byte_count = HTTPStatus.OK, size
        else:
            status, byte_count = HTTPStatus.PARTIAL_CONTENT, wanted.byte_count
            headers["Content-Range"] = f"bytes {wanted.first}-{wanted.last}/{size}"
            file.seek(wanted.first)
        self.send_head(status, headers | {"Content-Length": str(byte_count)})
        if self.command == "GET":
            self._send_body(file, byte_count)

    def _describe(self, path: Path, etag: str) -> dict[str, str]:
        name = path.relative_to(self.server.root.resolve()).as_posix()
        return {
            "Content-Type": CONTENT_TYPES.get(path.suffix, OTHER_CONTENT),
            "Cache-Control": FOR_EVER if IMMUTABLE.fullmatch(name) else ASK_EACH_TIME,
            "ETag": etag,
            "Accept-Ranges": "bytes",
        }

    def _wanted_range(self, etag: str, size: int) -> ByteRange | None:
        header = self.headers.get("Range")
        if header is None or self.command != "GET":
            return None
        condition = self.headers.get("If-Range")
        return parse_range(header, size) if condition is None or condition == etag else None

    @staticmethod
    def _matches(header: str | None, etag: str) -> bool:
        if header is None:
            return False
        return header.strip() == "*" or etag in [tag.strip().removeprefix("W/") for tag in header.split(",")]

    def send_head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        """Status line and headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_body(self, file: BinaryIO, byte_count: int) -> None:
        left = byte_count
        while left and (data := file.read(min(left, 64 * 1024))):
            self.wfile.write(data)
            left -= len(data)

    def _refuse(self, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        plain = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))}
        self.send_head(status, plain | {"Cache-Control": ASK_EACH_TIME} | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say only what went wrong; a page load is some thirty requests."""
        if isinstance(code, int) and code >= HTTPStatus.BAD_REQUEST:
            super().log_request(code, size)


class SiteServer(ThreadingHTTPServer):
    """One site on one address; `prefix` stands for the folder that a host may serve it from."""

    daemon_threads = True

    def __init__(
        self,
        root: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: str = "/",
        handler: type[SiteHandler] = SiteHandler,
    ) -> None:
        self.root = root
        self.prefix = f"/{prefix.strip('/')}/".replace("//", "/")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    @property
    def url(self) -> str:
        """The address to open."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{name}:{port}{self.prefix}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say it in one line; a visitor who goes away in the middle of an answer is no error."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            what = plain_text(f"serve: an answer failed: {type(error).__name__}: {error}")
            sys.stderr.write(what + "\n")


@contextmanager
def serving(server: SiteServer) -> Iterator[SiteServer]:
    """Run a server in a thread of its own for as long as the `with` block lasts."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
