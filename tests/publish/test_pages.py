from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path

import pytest

from builder.errors import RefusedError
from builder.publish.comments import without_comments
from builder.publish.pages import (
    build_page,
    default_web_folder,
    has_integrity,
    is_sealed,
    precache_of,
    read_page,
)

RELEASE = "ab" * 32
Web = Callable[..., Path]


class Links(HTMLParser):
    """The oracle for what a page names: an HTML parser that we did not write."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.found += [
            (values.get("rel") or tag, str(values[key])) for key in ("href", "src") if key in values
        ]


def links(html: bytes) -> list[tuple[str, str]]:
    parser = Links()
    parser.feed(html.decode())
    return parser.found


def build(folder: Path) -> dict[str, bytes]:
    return build_page(read_page(folder), RELEASE)


def test_only_files_that_a_browser_needs_are_published(web: Web) -> None:
    files = build(web())
    app = next(path for path in files if path.startswith("app/")).split("/")[1]
    assert re.fullmatch("[0-9a-f]{12}", app)
    assert sorted(files) == [
        *(
            f"app/{app}/{path}"
            for path in ("family/family.js", "family/hash.js", "page/icon.svg", "page/main.js")
        ),
        *(f"app/{app}/{path}" for path in ("page/page.css", "worker/late.js", "worker/worker.js")),
        "index.html",
        "sw.js",
    ]


def test_every_mark_is_filled_and_every_link_is_a_file(web: Web) -> None:
    files = build(web())
    for name in ("index.html", "sw.js"):
        assert b"{{" not in files[name]
        assert RELEASE.encode() in files[name]
    found = links(files["index.html"])
    assert len(found) == 6
    assert all(target in files for _, target in found)


def test_modules_that_the_page_imports_are_preloaded_and_others_are_not(web: Web) -> None:
    found = [
        posixpath.basename(target)
        for kind, target in links(build(web())["index.html"])
        if kind == "modulepreload"
    ]
    assert found == ["family.js", "hash.js", "main.js"]


def test_precache_lists_every_file_but_the_service_worker_with_its_hash(web: Web) -> None:
    files = build(web())
    listed = json.loads(re.search(r"parse\('(.*)'\)", files["sw.js"].decode())[1])  # type: ignore[index]
    assert [path for path, _ in listed] == [path for path in sorted(files) if path != "sw.js"]
    for path, integrity in listed:
        digest = base64.b64encode(hashlib.sha256(files[path]).digest()).decode()
        assert integrity == ("" if path == "index.html" else f"sha256-{digest}")


def test_precache_reads_back(web: Web) -> None:
    files = build(web())
    assert {
        path
        for path, integrity in precache_of(files["sw.js"]).items()
        if has_integrity(files[path], integrity)
    } == {path for path in files if path.startswith("app/")}


@pytest.mark.parametrize("path", ["index.html", "sw.js", "page/main.js", "page/icon.svg", "worker/late.js"])
def test_any_changed_source_moves_the_app_folder(web: Web, path: str) -> None:
    before, after = read_page(web("a")), read_page(web("b", **{path: "\n"}))
    assert before.sha256 != after.sha256


def test_renamed_source_moves_the_app_folder(web: Web) -> None:
    renamed = read_page(web("b", **{"worker/late.js": None, "worker/later.js": "export const late = 1;\n"}))
    assert read_page(web("a")).sha256 != renamed.sha256


def test_same_sources_elsewhere_give_the_same_bytes(web: Web) -> None:
    assert build(web("a")) == build(web("deeper/b"))


def test_seal_proves_every_byte_of_both_root_files(web: Web) -> None:
    files = build(web())
    for name in ("index.html", "sw.js"):
        data = files[name]
        assert is_sealed(data)
        for index in range(len(data)):
            assert not is_sealed(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
            assert not is_sealed(data[:index])
        assert not is_sealed(data + b"<script></script>")


BROKEN = {
    "import of a missing module": ({"page/main.js": 'import "./gone.js";\n'}, "page/gone.js'"),
    "import over many lines": ({"page/main.js": 'import {\n a,\n b\n} from "./gone.js";\n'}, "page/gone.js'"),
    "export from": ({"family/hash.js": 'export * from "./gone.js";\n'}, "family/gone.js'"),
    "import on demand": ({"worker/worker.js": 'await import("./gone.js");\n'}, "worker/gone.js'"),
    "worker": ({"family/hash.js": 'new URL("../worker/gone.js", import.meta.url)\n'}, "worker/gone.js'"),
    "bare name": ({"page/main.js": 'import React from "react";\n'}, "'react', must be relative"),
    "other host": ({"page/main.js": 'import "https://cdn.example/x.js";\n'}, "must be relative"),
    "from the root": ({"page/page.css": "a { background: url(/icon.svg) }\n"}, "must be relative"),
    "above the site": ({"page/main.js": 'import "../../../../x.js";\n'}, "must be relative"),
    "css import": ({"page/page.css": '@import "gone.css";\n'}, "page/gone.css'"),
    "link": ({"index.html": '<link href="{{APP}}/page/gone.css">\n'}, "page/gone.css'"),
    "script of another host": (
        {"index.html": '<script src="//cdn.example/x.js"></script>\n'},
        "must be relative",
    ),
    "unknown mark": ({"index.html": "{{TITLE}}\n"}, "{{TITLE}}"),
    "unknown mark in the worker": ({"sw.js": "{{APP}}\n"}, "{{APP}}"),
    "no template": ({"sw.js": None}, "sw.js: file: is missing"),
    "name with a space": ({"page/a b.js": "\n"}, "'page/a b.js'"),
    "name with a quote": ({"page/a'b.js": "\n"}, "file name"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_page_that_would_not_load_is_refused_in_one_sentence(web: Web, case: str) -> None:
    changes, words = BROKEN[case]
    with pytest.raises(RefusedError) as caught:
        build(web(**changes))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "/** @typedef {import('./types.d.ts').Part} Part */",
        "// import './gone.js' was here",
        "const text = 'x from \"./gone.js\"';",
        "export function from_(a) { return a; }",
    ],
)
def test_what_only_looks_like_an_import_is_none(web: Web, line: str) -> None:
    build(web(**{"page/main.js": line + "\n"}))


def test_own_page_can_be_built() -> None:
    files = build_page(read_page(default_web_folder()), RELEASE)
    assert {"index.html", "sw.js"} < set(files)
    missing = [target for _, target in links(files["index.html"]) if target not in files]
    assert [target for target in missing if not target.startswith("#")] == []


COMMENTED = """\
/**
 * Owns: nothing.
 */
import './a.js'; // beside code
// a line, and then two
  /** @type {number} */
  /* one */ const b = /** @type {number} */ (1);
/** @type {string} */ (b).c = '/* no comment */';
const url = 'https://example.org'; /* ends
later */
const d = `
  ${b} // no comment`;
//"""
BARE = """\



import './a.js'; // beside code


  /* one */ const b = /** @type {number} */ (1);
/** @type {string} */ (b).c = '/* no comment */';
const url = 'https://example.org'; /* ends
later */
const d = `
  ${b} // no comment`;
"""


def test_comments_on_their_own_lines_stay_behind_and_lines_keep_their_numbers() -> None:
    assert without_comments(COMMENTED, ".js") == BARE
    assert without_comments("a {}\n/* b\n c */\n// d\n", ".css") == "a {}\n\n\n// d\n"
    assert without_comments("// a\n", ".svg") == "// a\n"


def emitted(folder: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What TypeScript's compiler, which knows JavaScript's grammar, makes of modules without comments."""
    for name, data in files.items():
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_bytes(data)
    compiler = default_web_folder() / "node_modules" / "typescript" / "bin" / "tsc"
    options = ["--ignoreConfig", "--allowJs", "--noCheck", "--removeComments", "--target", "esnext"]
    options += ["--module", "esnext", "--moduleResolution", "bundler", "--rootDir", "in", "--outDir", "out"]
    node = Path(sys.executable).with_name("node")
    subprocess.run([node, compiler, *options, *(f"in/{name}" for name in files)], cwd=folder, check=True)
    return {name: (folder / "out" / name).read_bytes() for name in files}


def test_the_pages_code_is_published_to_the_last_token(tmp_path: Path) -> None:
    web, page = default_web_folder(), read_page(default_web_folder())
    published = {**page.modules, "sw.js": page.service_worker.encode()}
    published = {name: data for name, data in published.items() if name.endswith(".js")}
    written = {name: (web / name).read_bytes() for name in published}
    assert sum(map(len, published.values())) < 0.8 * sum(map(len, written.values()))
    assert emitted(tmp_path / "a", published) == emitted(tmp_path / "b", written)
