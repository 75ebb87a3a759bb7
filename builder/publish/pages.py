"""The page: from the sources in `web/` to the files of a site.

Owns: which source files are published, the app folder's name, filling the templates' marks, sealing and
proving `index.html` and `sw.js`. Knows nothing of: models, the rest of the manifest. Source: docs/publish.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RefusedError, refusal
from builder.files import load_json
from builder.publish.comments import COMMENTS, without_comments
from builder.publish.manifest import app_path
from builder.publish.references import preload_list, require_references

SPEC = "docs/publish.md"
INDEX = "index.html"
SERVICE_WORKER = "sw.js"
MODULE_FOLDERS = ("page", "family", "worker")
PUBLISHED_SUFFIXES = (".js", ".css", ".svg", ".png", ".ico", ".webp", ".woff2", ".webmanifest")
SAFE_PATH = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$")
SEAL = re.compile(rb"\A(.*\n)(?:<!-- |// )sealed: ([0-9a-f]{64})(?: -->)?\n\Z", re.DOTALL)
INTEGRITY = re.compile(r"sha256-[A-Za-z0-9+/]{43}=")
PRECACHE_NAMED = re.compile(r"JSON\.parse\('(\[.*\])'\)")


@dataclass(frozen=True)
class PageSource:
    """The page without its comments; `modules` maps paths such as `page/main.js` to bytes."""

    index: str
    service_worker: str
    modules: Mapping[str, bytes]

    @property
    def sha256(self) -> str:
        """Names the app folder: over one line `<sha256> <path>` per file, sorted by path."""
        files = {**self.modules, INDEX: self.index.encode(), SERVICE_WORKER: self.service_worker.encode()}
        lines = [f"{hashlib.sha256(files[path]).hexdigest()} {path}\n" for path in sorted(files)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def default_web_folder() -> Path:
    """`web/` of the checkout, or its copy in an installed package."""
    packaged = Path(__file__).parent / "web"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "web"


def read_page(web: Path) -> PageSource:
    """Read what is published of `web`. Raises RefusedError for a missing template or an unsafe file name."""
    modules: dict[str, bytes] = {}
    for folder in MODULE_FOLDERS:
        for path in sorted((web / folder).rglob("*")):
            name = path.relative_to(web).as_posix()
            if path.suffix not in PUBLISHED_SUFFIXES or not path.is_file():
                continue
            if not SAFE_PATH.match(name):
                allowed = "letters, digits, '_', '-' and '.' between slashes"
                raise RefusedError(refusal(web, "file name", found=repr(name), allowed=allowed, spec=SPEC))
            data = path.read_bytes()
            is_text = path.suffix in COMMENTS
            modules[name] = without_comments(data.decode(), path.suffix).encode() if is_text else data
    worker = without_comments(_template(web / SERVICE_WORKER), ".js")
    return PageSource(_template(web / INDEX), worker, modules)


def build_page(source: PageSource, release: str) -> dict[str, bytes]:
    """The page's files by their path on the site. Raises RefusedError if a mark or a reference dangles."""
    app = app_path(source.sha256)
    files = {f"{app}/{path}": data for path, data in source.modules.items()}
    index = _fill(INDEX, source.index, {"APP": app, "RELEASE": release})
    links = [f'<link rel="modulepreload" href="{path}">' for path in preload_list(index, files)]
    files[INDEX] = _seal(
        "<!-- sealed: {} -->\n", _fill(INDEX, index, {"MODULES": "\n".join(links)}, last=True)
    )
    precache = [[path, "" if path == INDEX else _integrity(files[path])] for path in sorted(files)]
    marks = {"RELEASE": release, "PRECACHE": json.dumps(precache, separators=(",", ":"))}
    worker = _fill(SERVICE_WORKER, source.service_worker, marks, last=True)
    files[SERVICE_WORKER] = _seal("// sealed: {}\n", worker)
    require_references(files)
    return files


def is_sealed(data: bytes) -> bool:
    """Whether these are, unchanged, the bytes of an `index.html` or `sw.js` that `build_page` made."""
    match = SEAL.match(data)
    return match is not None and hashlib.sha256(match[1]).hexdigest().encode() == match[2]


def precache_of(service_worker: bytes) -> dict[str, str]:
    """Path -> integrity, as `build_page` lists them in `sw.js`; empty if there is no such list.

    The seal proves nothing about a stranger's file: each path is safe to read, whatever it says.
    """
    match = PRECACHE_NAMED.search(service_worker.decode("utf-8", errors="replace"))
    try:
        pairs = load_json(match[1].encode(), SERVICE_WORKER) if match else []
    except RefusedError:
        return {}
    listed = dict(pairs) if all(map(_is_listed, pairs)) else {}
    return listed if len(listed) == len(pairs) else {}


def _is_listed(pair: object) -> bool:
    match pair:
        case [str(path), str(integrity)]:
            is_in_app = path.startswith("app/") and SAFE_PATH.fullmatch(path) is not None
            return (
                integrity == "" if path == INDEX else is_in_app and INTEGRITY.fullmatch(integrity) is not None
            )
    return False


def has_integrity(data: bytes, integrity: str) -> bool:
    """Whether the bytes are the ones that the precache list means."""
    return _integrity(data) == integrity


def _integrity(data: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(data).digest()).decode()


def _template(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise RefusedError(
            refusal(path, "file", found="missing", allowed="the page's template", spec=SPEC)
        ) from None


def _fill(name: str, text: str, marks: Mapping[str, str], *, last: bool = False) -> str:
    for mark, value in marks.items():
        text = text.replace("{{" + mark + "}}", value)
    left = re.search(r"\{\{[A-Z]+\}\}", text)
    if last and left:
        raise RefusedError(
            refusal(name, "mark", found=left[0], allowed="one that pack fills here", spec=SPEC)
        )
    return text


def _seal(form: str, text: str) -> bytes:
    body = text if text.endswith("\n") else text + "\n"
    return (body + form.format(hashlib.sha256(body.encode()).hexdigest())).encode()
