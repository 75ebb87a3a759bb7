"""How Playwright for Python starts Chromium here: which browser, which flags.

Owns: the choice between Playwright's own Chromium, the system's, and Debian's package. Knows nothing of:
tests, sites. A file of this name cannot be imported; `runpy.run_path("playwright.config.py")` is the way in.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Playwright

SYSTEM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",  # CI runs as root.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
INSTALL_LOCK = Path(tempfile.gettempdir()) / "saguaro-chromium.lock"
ADVICE = (
    "no Chromium found; install one with `python -m playwright install chromium`, "
    "or your system's package `chromium`, and run the tests again"
)


def find_chromium(playwright: Playwright) -> Path:
    """Playwright's own Chromium, else the system's, else Debian's by apt as root; else FileNotFoundError."""
    own = Path(playwright.chromium.executable_path)
    if own.exists():
        return own
    return _system_chromium() or _debian_chromium() or _nothing()


def launch(playwright: Playwright, **options: Any) -> Browser:
    """A headless Chromium with this project's flags; `options` as for `BrowserType.launch`."""
    path = str(find_chromium(playwright))
    return playwright.chromium.launch(
        executable_path=path, args=[*FLAGS, *options.pop("args", [])], **options
    )


def _system_chromium() -> Path | None:
    found = next(filter(None, map(shutil.which, SYSTEM_NAMES)), None)
    return Path(found) if found else None


def _debian_chromium() -> Path | None:
    """Debian's, installed by one process while the others wait: test workers all come here at once."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    with INSTALL_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _system_chromium() or _install_chromium()


def _install_chromium() -> Path | None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        if subprocess.run(["apt-get", "--quiet", *command], env=environment, check=False).returncode:
            return None
    return _system_chromium()


def _nothing() -> Path:
    raise FileNotFoundError(ADVICE)
