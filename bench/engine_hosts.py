"""JavaScript hosts for `bench.engine`: node, and Chromium.

Owns: how commands reach engine_host.js, and what processor time they cost (Linux). Knows nothing of: rounds,
tables.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parent


class Host(Protocol):
    """A place where JavaScript runs."""

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer of engine_host.js. Paths are files on this machine."""

    def process_ids(self) -> list[int]:
        """The processes whose time counts."""


def cpu_seconds(host: Host, command: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Processor time of a command, all threads together, and its answer."""
    before = _spent(host)
    answer = host.ask(command)
    return _spent(host) - before, answer


def _spent(host: Host) -> float:
    """Linux gives the processor clock of another process by this number (clock_getcpuclockid)."""
    return sum(time.clock_gettime(~process << 3 | 2) for process in host.process_ids())


class Node:
    """A node process that obeys line by line."""

    def __init__(self, program: Path) -> None:
        command = [str(program), str(HERE / "engine_node.mjs")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench: node ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def process_ids(self) -> list[int]:
        """The program may be a script that starts the real node."""
        return [self.process.pid, *_descendants(self.process.pid)]


class Chromium:
    """A page of headless Chromium; files that a command names are copied to where it may fetch them."""

    PATHS = ("wasm", "model", "runtime")
    OBEY = """async (command) => {
        const { obey } = await import('/engine_host.js');
        const read = async (path) => new Uint8Array(await (await fetch(path)).arrayBuffer());
        return obey(command, (globalThis.kept ??= {}), read, (path) => import(path));
    }"""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self.folder = page, folder

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        moved = dict(command)
        for name in self.PATHS:
            if name in moved:
                source = Path(moved[name])
                shutil.copy(source, self.folder / source.name)
                moved[name] = f"/{source.name}"
        answer: dict[str, Any] = self.page.evaluate(self.OBEY, moved)
        return answer

    def process_ids(self) -> list[int]:
        """The renderers; other processes draw and fetch."""
        return [i for i in _descendants(os.getpid()) if b"--type=renderer" in _command_line(i)]


def _command_line(process: int) -> bytes:
    with suppress(OSError):  # gone meanwhile
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def _descendants(ancestor: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = []
    for process in parents:
        above = parents[process]
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor:
            found.append(process)
    return found


@contextmanager
def node_host(program: Path) -> Iterator[Node]:
    host = Node(program)
    try:
        yield host
    finally:
        if host.process.stdin:
            host.process.stdin.close()
        host.process.wait()


@contextmanager
def chromium_host() -> Iterator[Chromium]:
    from playwright.sync_api import sync_playwright

    from bench.chromium import launch

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        shutil.copy(HERE / "engine_host.js", folder)
        (folder / "index.html").write_text("<!doctype html><title>bench</title>", "utf-8")
        handler = functools.partial(QuietHandler, directory=name)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = launch(playwright)
        try:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            yield Chromium(page, folder)
        finally:
            browser.close()
            server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """A file server that does not talk."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""
