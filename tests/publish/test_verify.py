from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.errors import ManifestError
from builder.publish.manifest import write_manifest
from builder.publish.site import open_site
from builder.publish.verify import verify
from tests.publish.conftest import MODEL_BYTES, House
from tests.publish.family_fields import sha
from tests.publish.hostile_server import HTML_PAGE, LFS_POINTER


def part_of(site: Path, member_id: str) -> Path:
    return site / open_site(site).manifest.member(member_id).delivery.parts[0].path


def app_file(site: Path, name: str) -> Path:
    return site / open_site(site).manifest.app.path / name


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"<script></script>\n")


def reseal(site: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A sound manifest that says something wrong, with page files that name its release."""
    before = open_site(site).manifest.release
    document = json.loads((site / "family.json").read_bytes())
    change(document)
    fields = {key: value for key, value in document.items() if key not in ("format", "version", "release")}
    (site / "family.json").write_bytes(write_manifest(fields))
    assert open_site(site).manifest.release != before


def swap_deliveries(document: dict[str, Any]) -> None:
    home, media = document["specialists"]
    home["delivery"], media["delivery"] = media["delivery"], home["delivery"]


def wrong_size(document: dict[str, Any]) -> None:
    document["engine"]["bytes"] += 1


ALL = ["base", "router", "home", "media"]
DAMAGE: dict[str, tuple[Callable[[Path], Any], list[str], list[str]]] = {
    "flipped byte in a base part": (lambda site: flip(part_of(site, "base")), ["sha256: is"], []),
    "flipped byte in a patch": (
        lambda site: flip(part_of(site, "home")),
        ["sha256: is"],
        ["base", "router", "media"],
    ),
    "missing part": (
        lambda site: part_of(site, "media").unlink(),
        ["file: is missing"],
        ["base", "router", "home"],
    ),
    "cut part": (
        lambda site: part_of(site, "media").write_bytes(b"x"),
        ["sha256: is"],
        ["base", "router", "home"],
    ),
    "html in the place of a part": (
        lambda site: part_of(site, "media").write_bytes(HTML_PAGE),
        ["sha256: is"],
        ALL[:3],
    ),
    "git lfs pointer": (
        lambda site: part_of(site, "media").write_bytes(LFS_POINTER),
        ["Git LFS pointer"],
        ALL[:3],
    ),
    "flipped byte in the engine": (lambda site: flip(next(site.glob("engine.*"))), ["wasm: sha256: is"], ALL),
    "missing engine": (lambda site: next(site.glob("engine.*")).unlink(), ["wasm: file: is missing"], ALL),
    "changed page": (lambda site: flip(site / "index.html"), ["index.html: seal"], ALL),
    "page that the host added to": (
        lambda site: (site / "index.html").write_bytes(
            (site / "index.html").read_bytes() + b"<script></script>"
        ),
        ["index.html: seal"],
        ALL,
    ),
    "missing page": (lambda site: (site / "index.html").unlink(), ["index.html: file: is missing"], ALL),
    "changed service worker": (lambda site: flip(site / "sw.js"), ["sw.js: seal"], ALL),
    "changed module": (lambda site: flip(app_file(site, "family/hash.js")), ["family/hash.js: sha256"], ALL),
    "missing module": (
        lambda site: app_file(site, "worker/late.js").unlink(),
        ["worker/late.js: file: is missing"],
        ALL,
    ),
    "module of nobody": (
        lambda site: app_file(site, "page/old.js").write_text(""),
        ["page/old.js: file: is named"],
        ALL,
    ),
    "part of nobody": (
        lambda site: (site / "parts" / f"{sha('x')}.bin").write_bytes(b"x"),
        [".bin: file: is named by no release"],
        ALL,
    ),
    "left by a killed pack": (
        lambda site: (site / "family.json.12-34.writing").write_bytes(b"{"),
        [".writing: file: is named by no release"],
        ALL,
    ),
    "broken manifest of the release before": (
        lambda site: (site / "previous.json").write_bytes(b"{}\n"),
        ["previous.json: format"],
        ALL,
    ),
    "patches that belong to other members": (
        lambda site: reseal(site, swap_deliveries),
        ["home: model: is", "media: model: is", "index.html: release", "sw.js: release"],
        ["base", "router"],
    ),
    "size that is not the file's": (
        lambda site: reseal(site, wrong_size),
        ["wasm: bytes: is", "index.html: release", "sw.js: release"],
        ALL,
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told_in_one_sentence_each_and_the_rest_is_proved(site: Path, case: str) -> None:
    damage, words, sound = DAMAGE[case]
    damage(site)
    verdict = verify(site)
    assert len(verdict.mismatches) == len(words)
    for sentence, word in zip(verdict.mismatches, words, strict=True):
        assert word in sentence
        assert "\n" not in sentence
    assert [name for name, _, _ in verdict.models] == sound


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_bytes(HTML_PAGE)])
def test_without_a_sound_manifest_nothing_can_be_checked(site: Path, damage: Callable[[Path], Any]) -> None:
    damage(site / "family.json")
    with pytest.raises(ManifestError, match=r"family\.json"):
        verify(site)


@pytest.mark.slow
def test_missing_part_of_the_release_before_is_told(house: House, tmp_path: Path) -> None:
    house.pack(tmp_path / "site")
    old = part_of(tmp_path / "site", "home")
    text = (house.folder / "family.toml").read_text()
    (house.folder / "family.toml").write_text(text.replace("A house", "My house"))
    house.pack(tmp_path / "site", part_bytes=4096)
    assert verify(tmp_path / "site").mismatches == []
    old.unlink()
    assert [str(old) in sentence for sentence in verify(tmp_path / "site").mismatches] == [True]


def test_files_of_the_deployment_are_named_and_no_mismatch(site: Path) -> None:
    (site / "CNAME").write_text("example.org\n")
    (site / ".nojekyll").write_text("")
    verdict = verify(site)
    assert (verdict.foreign, verdict.mismatches) == (["CNAME"], [])


def test_damaged_member_is_never_handed_out(site: Path) -> None:
    flip(part_of(site, "home"))
    opened = open_site(site)
    with pytest.raises(ManifestError) as caught:
        opened.member_bytes("home")
    assert caught.value.code == "part_hash_mismatch"
    assert len(opened.member_bytes("media")) == MODEL_BYTES
