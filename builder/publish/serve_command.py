"""`serve SITE`: look at a packed site the way a plain static host shows it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from builder.errors import RefusedError, UsageError, refusal
from builder.publish.folder import MANIFEST
from builder.publish.serve import SiteServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("site", type=Path, metavar="SITE", help="folder that pack wrote")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="0.0.0.0 lets other machines in (default: %(default)s)"
    )
    parser.add_argument(
        "--prefix", default="/", help="serve it from a sub-path, such as /repo/ (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; stdout is the address to open."""
    site: Path = arguments.site
    if not (site / MANIFEST).is_file():
        found = f"without {MANIFEST}" if site.is_dir() else "missing"
        next_step = f"make one: python -m builder pack --out {site}"
        raise RefusedError(refusal(site, "folder", found=found, allowed="a packed site", next_step=next_step))
    with _bind(site, arguments.host, arguments.port, arguments.prefix) as server:
        print(server.url, flush=True)
        print("serve: stop with Ctrl-C", file=sys.stderr)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("serve: stopped", file=sys.stderr)
    return 0


def _bind(site: Path, host: str, port: int, prefix: str) -> SiteServer:
    if not 0 <= port <= 65535:
        raise UsageError(f"--port: is {port}, must be 0 to 65535")
    try:
        return SiteServer(site, host, port, prefix)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f"--host {host} --port {port}"
        step = "try another --port, or 0 for a free one"
        raise UsageError(f"{where}: cannot listen there ({reason}); {step}") from None
