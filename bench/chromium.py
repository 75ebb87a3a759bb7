"""Chromium as the tests start it, for every bench that opens a page.

Owns: the way to playwright.config.py, and the sentence where there is no browser. Knows nothing of: pages.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from playwright.sync_api import Browser, Playwright

CONFIG = Path(__file__).parents[1] / "playwright.config.py"


def launch(playwright: Playwright) -> Browser:
    """A headless Chromium. Raises SystemExit with advice if there is none and none can be installed."""
    try:
        browser: Browser = runpy.run_path(str(CONFIG))["launch"](playwright)
    except FileNotFoundError as error:
        sys.exit(f"bench: {error}")
    return browser
