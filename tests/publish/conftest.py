from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

INDEX = """<!doctype html>
<html lang="en" data-release="{{RELEASE}}">
<head>
<link rel="icon" href="{{APP}}/page/icon.svg">
<link rel="stylesheet" href="{{APP}}/page/page.css">
{{MODULES}}
<script type="module" src="{{APP}}/page/main.js"></script>
</head>
<body></body>
</html>
"""
SERVICE_WORKER = "const RELEASE = '{{RELEASE}}';\nconst PRECACHE = JSON.parse('{{PRECACHE}}');\n"
SOURCES = {
    "index.html": INDEX,
    "sw.js": SERVICE_WORKER,
    "page/main.js": 'import { open } from "../family/family.js";\nopen();\n',
    "page/page.css": 'body { background: url("icon.svg"); }\n',
    "page/icon.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>\n",
    "page/tsconfig.json": "{}\n",
    "family/types.d.ts": "export interface Part {}\n",
    "family/family.js": (
        "/** @import { Part } from './types.d.ts' */\n"
        "import {\n  hash,\n} from './hash.js';\n"
        "export const open = () => new Worker(new URL('../worker/worker.js', import.meta.url), hash);\n"
    ),
    "family/hash.js": "export const hash = { type: 'module' };\n",
    "worker/worker.js": "self.onmessage = () => import('./late.js');\n",
    "worker/late.js": "export const late = 1;\n",
}


@pytest.fixture
def web(tmp_path: Path) -> Callable[..., Path]:
    """Writes a small page's sources; `web(**{"page/main.js": "..."})` changes one, None leaves it out."""

    def write(name: str = "web", **changes: str | None) -> Path:
        for path, text in {**SOURCES, **changes}.items():
            if text is not None:
                (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / path).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write
