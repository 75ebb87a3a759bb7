from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.errors import SaguaroError, UsageError
from builder.family.export import export_family
from builder.family.family import load_family
from builder.publish.pack import Options, Report, pack
from tests.conftest import DEMO

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


def write_sources(folder: Path, **changes: str | None) -> Path:
    """A small page's sources; `**{"page/main.js": "..."}` changes one, None leaves it out."""
    for path, text in {**SOURCES, **changes}.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def web(tmp_path: Path) -> Callable[..., Path]:
    """Writes a page's sources into a folder of the test: `web("name", **changes)`."""
    return lambda name="web", **changes: write_sources(tmp_path / name, **changes)


FAMILY = """[family]
name = "house"
title = "A house"
examples = ["turn on the light"]

[base]
cact = "base.cact"
about = "small talk"

[router]
cact = "router.cact"

[[specialists]]
id = "home"
about = "lights"
cact = "home.cact"
tools = [{ name = "set_light" }]

[[specialists]]
id = "media"
about = "music"
cact = "media.cact"
max_new_tokens = 32
"""


# The demo's first two layers: real models, and a patch takes a third of the time.
SHALLOW = """[family]
name = "shallow"
title = "Shallow"
tokenizer = "DEMO/tokenizer.model"
layers = 2
[base]
checkpoint = "DEMO/base.safetensors"
[router]
adapter = "DEMO/router.lora.safetensors"
"""
SHALLOW_SPECIALIST = """[[specialists]]
id = "ID"
about = "ID"
adapter = "DEMO/ID.lora.safetensors"
"""
MODEL_BYTES = 665347
PART_BYTES = 200 * 1024


def quiet(step: str, done: float, total: int) -> None:
    """Progress that nobody watches."""


class House:
    """A family of finished containers in a folder of its own, and how to pack it."""

    def __init__(self, folder: Path, models: Path, web: Path) -> None:
        self.folder, self.web = folder, web
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("base", "router", "home", "media"):
            shutil.copyfile(models / f"{name}.cact", folder / f"{name}.cact")
        (folder / "family.toml").write_text(FAMILY, encoding="utf-8")

    def pack(self, out: Path, **options: Any) -> Report:
        """Pack with the cache beside the family and small parts."""
        defaults: dict[str, Any] = {
            "part_bytes": PART_BYTES,
            "effort": 0,
            "jobs": 2,
            "cache_folder": self.folder / "cache",
            "web_folder": self.web,
        }
        family = load_family(self.folder / "family.toml")
        return pack(family, out, Options(**defaults | options), quiet)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small real models: base, router, home, kitchen, media, calendar."""
    folder = tmp_path_factory.mktemp("models")
    specialists = [
        SHALLOW_SPECIALIST.replace("ID", name) for name in ("home", "kitchen", "media", "calendar")
    ]
    text = "".join([SHALLOW, *specialists]).replace("DEMO", str(DEMO.absolute()))
    (folder / "family.toml").write_text(text, encoding="utf-8")
    export_family(load_family(folder / "family.toml"), folder)
    return folder


@pytest.fixture
def house(tmp_path: Path, models: Path, packed_once: House, web: Callable[..., Path]) -> House:
    """A house of the test's own; its cache knows the patches, so that only tests about making pay for it."""
    house = House(tmp_path / "house", models, web())
    shutil.copytree(packed_once.folder / "cache", house.folder / "cache")
    return house


@pytest.fixture(scope="session")
def packed_once(tmp_path_factory: pytest.TempPathFactory, models: Path) -> House:
    folder = tmp_path_factory.mktemp("packed")
    house = House(folder / "house", models, write_sources(folder / "web"))
    house.pack(folder / "house" / "site")
    return house


@pytest.fixture
def site(tmp_path: Path, packed_once: House) -> Path:
    """A packed site that the test may damage."""
    shutil.copytree(packed_once.folder / "site", tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def alone(house: House) -> House:
    """A family of one base; the models of the other members may take its place."""
    (house.folder / "family.toml").write_text(FAMILY.split("[router]")[0])
    return house


@pytest.fixture
def first(alone: House, tmp_path: Path) -> Path:
    """The site of the first release; the family file now names another base."""
    alone.pack(tmp_path / "first")
    shutil.copyfile(alone.folder / "home.cact", alone.folder / "base.cact")
    return tmp_path / "first"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def refuse(alone: House, tmp_path: Path, previous: str, words: str) -> None:
    """The pack names what is wrong and what to do."""
    with pytest.raises(SaguaroError) as caught:
        alone.pack(tmp_path / "site", previous=(previous,))
    sentence = str(caught.value)
    assert words in sentence
    is_usage = isinstance(caught.value, UsageError)
    assert is_usage or sentence.endswith("; name a release that is whole, or leave --previous out")
    assert "\n" not in sentence
    assert "Errno" not in sentence
    assert not (tmp_path / "site").exists()
