"""Patches from the bases of earlier releases: what `pack --previous` makes, takes over and reports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.delta import apply_patch
from builder.errors import UsageError
from builder.publish import patches
from builder.publish.folder import site_files
from builder.publish.generic_tools import GenericSize, GenericTool
from builder.publish.manifest import UPGRADES_MAX, write_manifest
from builder.publish.report_figures import site_figures
from builder.publish.report_page import report_page
from builder.publish.serve import serving
from builder.publish.site import open_site
from builder.publish.verify import verify
from tests.cli.conftest import Run, run
from tests.publish.conftest import MODEL_BYTES, PART_BYTES, House, flip, refuse, sha256
from tests.publish.family_fields import family_fields
from tests.publish.hostile_server import HostileServer
from tests.publish.test_pack import _other_tokenizer

__all__ = ["run"]


def tree(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in site_files(folder)}


def release_of(folder: Path, base: bytes) -> str:
    """As much of a site as an upgrade needs: a manifest, and a base in one part."""
    part = {"path": f"parts/{sha256(base)}.bin", "bytes": len(base), "sha256": sha256(base)}
    fields = family_fields()
    fields["base"] |= {"bytes": len(base), "sha256": sha256(base), "upgrades": []}
    fields["base"]["delivery"] = {"kind": "whole", "bytes": len(base), "parts": [part]}
    (folder / "parts").mkdir(parents=True)
    (folder / part["path"]).write_bytes(base)
    (folder / "family.json").write_bytes(write_manifest(fields))
    return str(folder)


def reseal(site: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A sound manifest that says something wrong of the base."""
    document = json.loads((site / "family.json").read_bytes())
    change(document["base"])
    fields = {key: value for key, value in document.items() if key not in ("format", "version", "release")}
    (site / "family.json").write_bytes(write_manifest(fields))


def test_upgrade_costs_less_and_gives_the_new_base(alone: House, first: Path) -> None:
    old = open_site(first).manifest.base
    report = alone.pack(first, previous=(str(first),))
    base = open_site(first).manifest.base
    (upgrade,) = base.upgrades
    assert (upgrade.from_sha256, upgrade.from_bytes) == (old.sha256, old.bytes)
    pieces = [(piece.bytes, piece.sha256) for piece in upgrade.from_parts]
    assert pieces == [(part.bytes, part.sha256) for part in old.delivery.parts]
    assert len(pieces) == 4
    patch = open_site(first).patch_bytes("it", upgrade.delivery)
    before = b"".join((first / part.path).read_bytes() for part in old.delivery.parts)
    assert apply_patch(before, patch) == (alone.folder / "base.cact").read_bytes()
    (cost,) = report.upgrades
    assert (cost.whole_bytes, cost.delivered_bytes, cost.note) == (MODEL_BYTES, len(patch), "")
    assert len(patch) < 0.4 * MODEL_BYTES
    assert cost.part_count == -(-len(patch) // PART_BYTES)
    assert cost.changed_codes is not None
    assert report.made == (f"upgrade from {old.sha256[:12]}",)


def test_verify_applies_an_upgrade_where_the_earlier_base_is_kept(alone: House, first: Path) -> None:
    old = open_site(first).manifest.base.sha256
    alone.pack(first, previous=(str(first),))
    verdict = verify(first)
    assert (verdict.mismatches, verdict.foreign) == ([], [])
    assert [(found, applied) for found, _, applied in verdict.upgrades] == [(old, True)]
    alone.pack(first, previous=(str(first),), keep_previous=False)
    verdict = verify(first)
    assert [(found, applied) for found, _, applied in verdict.upgrades] == [(old, False)]
    assert verdict.mismatches == []


def test_release_with_the_same_base_takes_its_upgrades_over(
    alone: House, first: Path, tmp_path: Path
) -> None:
    alone.pack(first, previous=(str(first),))
    before, upgrades = tree(first), open_site(first).manifest.base.upgrades
    again = alone.pack(first, previous=(str(first),))
    assert tree(first) == before, "a second pack changes nothing"
    assert [cost.delivered_bytes for cost in again.upgrades] == [None, upgrades[0].delivery.bytes]
    assert "has the same base" in again.upgrades[0].note
    (alone.folder / "family.toml").write_text(
        (alone.folder / "family.toml").read_text().replace("A h", "My h")
    )
    alone.pack(first, previous=(str(first),))
    assert open_site(first).manifest.base.upgrades == upgrades
    assert verify(first).mismatches == []
    alone.pack(tmp_path / "plain")
    assert open_site(tmp_path / "plain").manifest.base.upgrades == ()


def test_parts_of_an_upgrade_stay_for_open_tabs(alone: House, first: Path) -> None:
    alone.pack(first, previous=(str(first),))
    (upgrade,) = open_site(first).manifest.base.upgrades
    shutil.copyfile(alone.folder / "media.cact", alone.folder / "base.cact")
    alone.pack(first)
    assert {part.path for part in upgrade.delivery.parts} < set(tree(first))
    assert verify(first).mismatches == []
    alone.pack(first, keep_previous=False)
    assert not {part.path for part in upgrade.delivery.parts} & set(tree(first))


def test_each_earlier_base_gets_one_upgrade(alone: House, first: Path, tmp_path: Path) -> None:
    second = release_of(tmp_path / "second", (alone.folder / "router.cact").read_bytes())
    named = (str(first), second, str(first))
    report = alone.pack(tmp_path / "site", previous=named)
    found = [upgrade.from_sha256 for upgrade in open_site(tmp_path / "site").manifest.base.upgrades]
    assert found == [open_site(folder).manifest.base.sha256 for folder in (first, second)]
    assert [cost.previous for cost in report.upgrades] == list(named[:2])
    assert set(report.made) == {f"upgrade from {name[:12]}" for name in found}
    assert verify(tmp_path / "site").mismatches == []


def test_earlier_release_may_lie_at_an_address(alone: House, first: Path, tmp_path: Path) -> None:
    alone.pack(tmp_path / "a", previous=(str(first),), cache_folder=tmp_path / "cold")
    for tail in ("", "family.json"):
        with serving(HostileServer(first, "/models/")) as server:
            cold = tmp_path / f"cold {tail}"
            alone.pack(tmp_path / "b", previous=(server.url + tail,), cache_folder=cold)
            parts = [part.path for part in open_site(first).manifest.base.delivery.parts]
            assert [seen.path for seen in server.seen] == ["family.json", *parts]
    assert tree(tmp_path / "b") == tree(tmp_path / "a")


def test_base_with_another_tokenizer_still_gives_a_patch(alone: House, first: Path, tmp_path: Path) -> None:
    old = _other_tokenizer((alone.folder / "home.cact").read_bytes())
    named = release_of(tmp_path / "old", old)
    report = alone.pack(tmp_path / "site", previous=(named,))
    assert report.upgrades[0].delivered_bytes is not None
    assert report.upgrades[0].delivered_bytes < 40_000, "the tokenizer and a little more"
    assert verify(tmp_path / "site").mismatches == []


def without_patch(alone: House, out: Path, previous: str) -> str:
    """The note of a release that gives no upgrade."""
    report = alone.pack(out, previous=(previous,))
    assert open_site(out).manifest.base.upgrades == ()
    assert [cost.delivered_bytes for cost in report.upgrades] == [None]
    return report.upgrades[0].note


def test_earlier_base_that_is_no_container_gives_none(alone: House, tmp_path: Path) -> None:
    named = release_of(tmp_path / "old", b"an older format")
    assert "its base cannot be patched: " in without_patch(alone, tmp_path / "site", named)


def test_patch_that_is_no_smaller_than_the_base_is_not_published(
    alone: House, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "make_patch", lambda base, target, **options: target)
    monkeypatch.setattr(patches, "apply_patch", lambda base, patch: patch)
    shutil.rmtree(alone.folder / "cache")
    assert "665,347 bytes, no less than the whole base" in without_patch(alone, tmp_path / "site", str(first))


def test_more_upgrades_than_a_manifest_holds_are_refused(
    alone: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "make_patch", lambda base, target, **options: base)
    monkeypatch.setattr(patches, "apply_patch", lambda base, patch: (alone.folder / "base.cact").read_bytes())
    monkeypatch.setattr(patches, "changed_code_share", lambda base, target: 1.0)
    named = tuple(release_of(tmp_path / f"{n}", b"base %d" % n) for n in range(UPGRADES_MAX + 1))
    with pytest.raises(UsageError, match="gives 17 upgrades, must be at most 16"):
        alone.pack(tmp_path / "site", previous=named)
    assert not (tmp_path / "site").exists()
    alone.pack(tmp_path / "site", previous=named[1:])
    assert len(open_site(tmp_path / "site").manifest.base.upgrades) == UPGRADES_MAX


@pytest.fixture
def upgraded(alone: House, first: Path) -> Path:
    alone.pack(first, previous=(str(first),))
    return first


def upgrade_paths(site: Path) -> list[str]:
    return [part.path for part in open_site(site).manifest.base.upgrades[0].delivery.parts]


def upgrade_part(site: Path) -> Path:
    return site / upgrade_paths(site)[-1]


def other_start(base: dict[str, Any]) -> None:
    base["upgrades"][0]["from_sha256"] = "0" * 64


def other_pieces(base: dict[str, Any]) -> None:
    base["upgrades"][0]["from_parts"].reverse()


RESEALED = ["index.html: release", "sw.js: release"]
DAMAGED: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "flipped byte": (lambda site: flip(upgrade_part(site)), ["sha256: is"]),
    "missing part": (lambda site: upgrade_part(site).unlink(), ["file: is missing"]),
    "another start": (
        lambda site: reseal(site, other_start),
        [*RESEALED, "patch: is between other files, must be from that base to this one"],
    ),
    "pieces of another file": (
        lambda site: reseal(site, other_pieces),
        [*RESEALED, "from_parts: is those of another file"],
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_verify_tells_of_an_upgrade_that_is_not_exact(upgraded: Path, case: str) -> None:
    spoil, words = DAMAGED[case]
    spoil(upgraded)
    verdict = verify(upgraded)
    assert len(verdict.mismatches) == len(words)
    assert all(word in found for word, found in zip(words, verdict.mismatches, strict=True))
    assert (verdict.upgrades, [name for name, _, _ in verdict.models]) == ([], ["base"])


def test_upgrade_that_lies_is_not_taken_over(alone: House, upgraded: Path, tmp_path: Path) -> None:
    reseal(upgraded, other_start)
    refuse(alone, tmp_path, str(upgraded), "patch: is between other files")


def test_upgrade_in_another_patch_format_is_left_behind(alone: House, upgraded: Path, tmp_path: Path) -> None:
    old = b"".join((upgraded / path).read_bytes() for path in upgrade_paths(upgraded))
    newer = old[:8] + b"\x63" + old[9:]
    part = {"path": f"parts/{sha256(newer)}.bin", "bytes": len(newer), "sha256": sha256(newer)}
    (upgraded / part["path"]).write_bytes(newer)
    delivery = {"kind": "patch", "bytes": len(newer), "sha256": sha256(newer), "parts": [part]}
    reseal(upgraded, lambda base: base["upgrades"][0].update(delivery=delivery))
    report = alone.pack(tmp_path / "site", previous=(str(upgraded),))
    assert [cost.delivered_bytes for cost in report.upgrades] == [None, None]
    assert "an upgrade of it cannot be taken over: " in report.upgrades[1].note
    assert open_site(tmp_path / "site").manifest.base.upgrades == ()


def test_command_shows_the_upgrade_and_says_why_there_is_none(run: Run, alone: House, first: Path) -> None:
    words = ["pack", alone.folder / "family.toml", "--out", first, "--effort", "0", "--json"]
    words += ["--cache", alone.folder / "cache", "--previous", first]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("builder.publish.pack_command.default_web_folder", lambda: alone.web)
        code, out, err = run(*words)
        _, _, again = run(*words)
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("base from "))
    document = json.loads(out.splitlines()[-1])["upgrades"][0]
    size, share = document["delivered_bytes"], f"{document['delivered_bytes'] / MODEL_BYTES:.1%}"
    from_hash = document["from_sha256"][:12]
    assert line.split()[:7] == ["base", "from", from_hash, "patch", "665,347", f"{size:,}", share]
    assert "no upgrade" not in err
    note = "has the same base: nobody needs an upgrade from it"
    assert again.splitlines()[0] == f"pack: no upgrade from {first}: {note}"
    code, out, err = run("verify", first)
    assert code == 0
    assert out.splitlines()[-1] == f"base from {from_hash}  {size:,} bytes  applied"


def test_report_draws_an_upgrade_as_it_draws_a_member(
    run: Run, alone: House, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [GenericTool("half", lambda base, target: len(target) // 2)]
    monkeypatch.setattr("builder.publish.report_page.found_tools", lambda: tools)
    monkeypatch.setattr("builder.publish.pack_command.default_web_folder", lambda: alone.web)
    old = open_site(first)
    earlier = {old.manifest.base.sha256: old.member_bytes("base")}
    words = ["pack", alone.folder / "family.toml", "--out", first, "--previous", first]
    words += ["--effort", "0", "--cache", alone.folder / "cache", "--report", tmp_path / "report.html"]
    code, _, err = run(*words)
    assert code == 0
    assert f"pack: report from {old.manifest.base.sha256[:12]}\n" in err
    site = open_site(first)
    (upgrade,) = site_figures(site, tools, lambda name: None, earlier).upgrades
    assert sum(upgrade.shares.values()) == upgrade.delivered_bytes
    assert upgrade.delivered_bytes == site.manifest.base.upgrades[0].delivery.bytes
    assert upgrade.generic == GenericSize("half", MODEL_BYTES // 2)
    assert any(0 < tensor.changed < 1 for tensor in upgrade.tensors)
    page = report_page(site_figures(site, tools, lambda name: None, earlier))
    assert (tmp_path / "report.html").read_bytes() == page
    assert page.count(f"<h3>Base {upgrade.id} (upgrade)".encode()) == 3


def test_report_draws_the_size_of_an_upgrade_whose_start_is_not_at_hand(upgraded: Path) -> None:
    figures = site_figures(open_site(upgraded), [], lambda name: None)
    (upgrade,) = figures.upgrades
    assert (upgrade.generic, upgrade.shares, upgrade.tensors) == (None, {}, ())
    page = report_page(figures).decode()
    assert page.count(f"<h3>Base {upgrade.id} (upgrade)") == 1
    assert f"{upgrade.delivered_bytes:,} bytes" in page
    assert "of the file, taken over from a release that has the same base" in page
