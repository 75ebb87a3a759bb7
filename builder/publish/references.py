"""Which files a page's HTML, CSS and modules name.

Owns: finding those references in the plain style that `web/` is written in, and resolving them. It is no
parser: a static `import` or `export ... from` starts a line, and what only types name (`.d.ts`) is left out.
Knows nothing of: sites, releases. Source: docs/publish.md, "The page's sources".
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from builder.errors import RefusedError, refusal

STATIC_IMPORT = re.compile(
    r"""^[ \t]*(?:import|export)\b(?:[\w\s{},*$]*?\bfrom)?\s*["']([^"'\n]+)["']""", re.MULTILINE
)
DYNAMIC_IMPORT = re.compile(r"""\bimport\(\s*["']([^"'\n]+)["']\s*\)""")
MODULE_URL = re.compile(r"""\bnew URL\(\s*["']([^"'\n]+)["']\s*,\s*import\.meta\.url\s*\)""")
HTML_REFERENCE = re.compile(r"""\s(?:href|src)\s*=\s*["']([^"']*)["']""")
CSS_REFERENCE = re.compile(r"""\burl\(\s*["']?([^"')]+)["']?\s*\)|@import\s+["']([^"']+)["']""")
MODULE_SCRIPT = re.compile(r"""<script\b[^>]*\btype=["']module["'][^>]*\bsrc=["']([^"']+)["']""")
ELSEWHERE = re.compile(r"^(?:[a-zA-Z][a-zA-Z0-9+.-]*:|/)")


def static_imports(module: str, text: str) -> Iterator[str]:
    """Paths that must be there before the module at path `module` can start."""
    for name in STATIC_IMPORT.findall(text):
        yield _resolve(module, name, relative_only=True)


def references(path: str, text: str) -> Iterator[str]:
    """Every path that the file at `path` names, relative to the site's root.

    Raises RefusedError for a name on another host or from the root: the page must work from any sub-path.
    """
    if path.endswith(".js"):
        yield from static_imports(path, text)
        names = DYNAMIC_IMPORT.findall(text) + MODULE_URL.findall(text)
        yield from (_resolve(path, name, relative_only=True) for name in names if not name.endswith(".ts"))
    elif path.endswith((".html", ".css")):
        pairs = (
            CSS_REFERENCE.findall(text)
            if path.endswith(".css")
            else [(n,) for n in HTML_REFERENCE.findall(text)]
        )
        for name in ("".join(pair) for pair in pairs):
            if name and not name.startswith(("data:", "#")):
                yield _resolve(path, name, relative_only=False)


def require_references(files: Mapping[str, bytes]) -> None:
    """Raise RefusedError for the first reference, in order of paths, to a file that is not in `files`."""
    for path in sorted(files):
        if not path.endswith((".js", ".html", ".css")):
            continue
        for target in references(path, files[path].decode("utf-8")):
            if target not in files:
                raise RefusedError(
                    refusal(path, "reference", found=f"{target!r}, which is not there", allowed="a file")
                )


def preload_list(index: str, files: Mapping[str, bytes]) -> list[str]:
    """The module scripts of the page `index` and all that they import, directly or not; sorted paths."""
    waiting = [_resolve("index.html", name, relative_only=False) for name in MODULE_SCRIPT.findall(index)]
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in found or path not in files:
            continue
        found.add(path)
        waiting.extend(static_imports(path, files[path].decode("utf-8")))
    return sorted(found)


def _resolve(path: str, name: str, *, relative_only: bool) -> str:
    bare = relative_only and not name.startswith(("./", "../"))
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), re.split(r"[?#]", name)[0]))
    if bare or ELSEWHERE.match(name) or target.startswith(".."):
        raise RefusedError(
            refusal(path, "reference", found=repr(name), allowed="relative and inside the site")
        )
    return target
