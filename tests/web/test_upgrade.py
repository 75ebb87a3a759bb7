"""A visitor who comes back after a release with another base: the patch alone travels, answers are exact."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.cact.layout import Kind
from builder.cact.reader import read_container
from builder.cact.writer import Blob, blobs_of, write_container
from builder.family.family import load_family
from builder.publish.manifest import Manifest
from builder.publish.pack import Options, pack
from builder.publish.pages import default_web_folder
from builder.publish.site import open_site
from builder.publish.verify import verify
from tests.publish.hostile_server import HostileServer, flipped
from tests.web.conftest import PART_BYTES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FAMILY = """[family]
name = "demo"
title = "A second house"
[base]
cact = "base.cact"
[router]
cact = "router.cact"
[[specialists]]
id = "home"
about = "lights and heating at home"
cact = "home.cact"
"""
TURNS = ["what is a saguaro?"]


def nudged(data: bytes) -> bytes:
    """The same model after some more training: one code in some fifty is its neighbour."""
    rng = np.random.default_rng(20)

    def nudge(blob: Blob) -> Blob:
        if blob.kind is not Kind.CQ:
            return blob
        packed = np.frombuffer(bytes(blob.data), np.uint8).copy()
        code_bytes = blob.shape[0] * blob.shape[1] * blob.bits // 8
        packed[:code_bytes][rng.random(code_bytes) < 0.04] ^= 1
        return dataclasses.replace(blob, data=packed.tobytes())

    container = read_container(data)
    return write_container(container.header, [nudge(blob) for blob in blobs_of(container)])


@pytest.fixture(scope="module")
def second_release(packed: Path, demo_family: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's site after a release with another base, which knows the way from the first one."""
    folder = tmp_path_factory.mktemp("second")
    for name in ("base", "router", "home"):
        shutil.copyfile(demo_family.folder / f"{name}.cact", folder / f"{name}.cact")
    (folder / "base.cact").write_bytes(nudged((folder / "base.cact").read_bytes()))
    (folder / "family.toml").write_text(FAMILY, "utf-8")
    site = Path(shutil.copytree(packed, folder / "site"))
    options = Options(
        PART_BYTES, 2, folder / "cache", default_web_folder(), effort=0, previous=(str(packed),)
    )
    pack(load_family(folder / "family.toml"), site, options, lambda step, done, total: None)
    return site


class Move:
    """A server that shows the first release until `publish`."""

    def __init__(self, server: HostileServer, second: Path) -> None:
        self.server, self._second = server, second

    def publish(self) -> Manifest:
        shutil.copytree(self._second, self.server.root, dirs_exist_ok=True)
        self.server.seen.clear()
        return open_site(self._second).manifest

    def fetched(self) -> list[str]:
        return sorted(seen.path for seen in self.server.seen if seen.path.startswith("parts/"))


@pytest.fixture
def move(site: Path, serve: Callable[..., HostileServer], second_release: Path) -> Move:
    return Move(serve(site), second_release)


def paths(*deliveries: Any) -> list[str]:
    return sorted(part.path for delivery in deliveries for part in delivery.parts)


def exact(answer: dict[str, Any]) -> tuple[str, list[int], list[str]]:
    envelope = answer["envelope"]
    return envelope["text"], envelope["token_ids"], answer["trace"]["logits_sha256"]


def test_who_comes_back_downloads_the_upgrade_alone(visit, move: Move) -> None:
    visitor = visit(move.server)
    first = visitor.embed()
    before = exact(first.respond(TURNS, trace=True))
    first.page.close()
    manifest = move.publish()
    (upgrade,) = manifest.base.upgrades
    router = manifest.router.delivery
    chat = visitor.open_chat()
    cost = f"{(upgrade.delivery.bytes + router.bytes) / 1e3:.0f} KB"
    chat.wait_for_words("#welcome-cost", f"Your first message downloads {cost}")
    chat.page.close()
    again = visitor.embed()
    after = exact(again.respond(TURNS, trace=True))
    assert move.fetched() == paths(upgrade.delivery, router)
    assert upgrade.delivery.bytes < 0.2 * manifest.base.bytes
    assert after == exact(visit(move.server).embed().respond(TURNS, trace=True)), "as for who comes first"
    assert after[2] != before[2]
    told = again.call("events.filter(({ type }) => type === 'upgrade')")
    assert told == [{"type": "upgrade", "fromSha256": upgrade.from_sha256, "error": None}]
    assert again.call("family.list().then((all) => all.filter(({ usedBy }) => usedBy.length === 0))") == []


def test_damaged_upgrade_leads_to_the_whole_base(visit, move: Move) -> None:
    visitor = visit(move.server)
    first = visitor.embed()
    first.respond(TURNS)
    first.page.close()
    manifest = move.publish()
    (upgrade,) = manifest.base.upgrades
    move.server.on(upgrade.delivery.parts[-1].path, flipped)
    again = visitor.embed()
    after = exact(again.respond(TURNS, trace=True))
    assert set(paths(manifest.base.delivery)) < set(move.fetched())
    assert after == exact(visit(move.server).embed().respond(TURNS, trace=True))
    told = again.call("events.filter(({ type }) => type === 'upgrade').map(({ error }) => error.code)")
    assert told == ["part_hash_mismatch"]


def test_second_release_is_sound(second_release: Path) -> None:
    verdict = verify(second_release)
    assert verdict.mismatches == []
    assert [applied for _, _, applied in verdict.upgrades] == [True]
