from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from builder.cact.layout import Kind
from builder.cact.reader import read_container
from builder.cact.writer import Blob, blobs_of, write_container
from builder.errors import ContainerError, FamilyError, RefusedError
from builder.family.export import Exporters
from builder.family.family import load_family
from builder.publish import pack as pack_module
from builder.publish import patches
from builder.publish.engine_file import read_engines
from builder.publish.folder import site_files
from builder.publish.manifest import PART_BYTES_MAX, read_manifest
from builder.publish.pack import Options, pack
from builder.publish.site import open_site
from builder.publish.verify import verify
from tests.conftest import DEMO, DemoFamily
from tests.publish.conftest import FAMILY, MODEL_BYTES, PART_BYTES, SHALLOW, House, quiet


def tree(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in site_files(folder)}


def rewritten(data: bytes, change: Callable[[int, Blob], Blob] | None = None, **header: Any) -> bytes:
    """The same container with some tensors or header fields changed."""
    container = read_container(data)
    blobs = blobs_of(container)
    if change:
        blobs = [change(index, blob) for index, blob in enumerate(blobs)]
    return write_container(dataclasses.replace(container.header, **header), blobs)


def write_router_family(folder: Path) -> Path:
    """A base from a checkpoint and a router whose adapter lies in `folder`."""
    text = SHALLOW.replace("DEMO/router.lora", "router.lora").replace("DEMO", str(DEMO))
    (folder / "family.toml").write_text(text)
    return folder / "family.toml"


def test_site_gives_back_every_model_and_names_every_file(site: Path, packed_once: House) -> None:
    opened = open_site(site)
    for name in ("base", "router", "home", "media"):
        assert opened.member_bytes(name) == (packed_once.folder / f"{name}.cact").read_bytes()
    verdict = verify(site)
    assert (len(verdict.models), verdict.mismatches, verdict.foreign) == (4, [], [])


def test_manifest_says_what_the_family_file_says(site: Path) -> None:
    manifest = open_site(site).manifest
    home = manifest.member("home")
    assert (manifest.name, manifest.title, manifest.numerics) == ("house", "A house", "exact")
    assert (manifest.container.tag, manifest.container.generation) == ("0x05e12a84", 3)
    assert manifest.examples == ("turn on the light",)
    assert (home.title, home.about, home.prompt.tools) == ("Home", "lights", '[{"name":"set_light"}]')
    assert [specialist.max_new_tokens for specialist in manifest.specialists] == [128, 32]
    assert manifest.router is not None
    assert json.loads(manifest.router.prompt.tools)[1] == {"name": "media", "description": "music"}
    assert manifest.engine.sha256 == hashlib.sha256(read_engines("exact")[0].data).hexdigest()


def test_parts_are_cut_at_the_size_asked_for(site: Path) -> None:
    manifest = open_site(site).manifest
    sizes = [part.bytes for part in manifest.base.delivery.parts]
    assert sizes == [PART_BYTES] * 3 + [MODEL_BYTES - 3 * PART_BYTES]
    assert all((site / path).stat().st_size <= PART_BYTES_MAX for path in site_files(site))
    assert all(path.endswith(".bin") for path in site_files(site) if path.startswith("parts/"))


def test_patch_travels_when_it_is_smaller(house: House, tmp_path: Path) -> None:
    report = house.pack(tmp_path / "site")
    assert [cost.kind for cost in report.members] == ["whole", "patch", "patch", "patch"]
    assert all(0 < cost.share < 0.4 for cost in report.members[1:])
    assert all(0.1 < cost.changed_codes < 0.4 for cost in report.members[1:])


def test_whole_file_travels_when_the_patch_is_not_smaller(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "make_patch", lambda base, target, **options: target)
    monkeypatch.setattr(patches, "apply_patch", lambda base, patch: patch)
    report = house.pack(tmp_path / "site", cache_folder=tmp_path / "cold")
    assert [cost.kind for cost in report.members] == ["whole"] * 4
    assert report.whole_bytes == report.family_bytes == 4 * MODEL_BYTES
    assert open_site(tmp_path / "site").member_bytes("home") == (house.folder / "home.cact").read_bytes()


def test_patch_that_does_not_give_the_member_back_is_never_published(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "apply_patch", lambda base, patch: base)
    with pytest.raises(RefusedError, match="does not give the model back"):
        house.pack(tmp_path / "site", cache_folder=tmp_path / "cold")
    assert not (tmp_path / "site").exists()


def test_same_inputs_give_the_same_bytes(house: House, tmp_path: Path, packed_once: House) -> None:
    report = house.pack(tmp_path / "elsewhere" / "site", jobs=1, cache_folder=tmp_path / "cold")
    assert report.made == ("patch home", "patch media", "patch router")
    assert tree(tmp_path / "elsewhere" / "site") == tree(packed_once.folder / "site")


def test_second_pack_makes_nothing(house: House, tmp_path: Path) -> None:
    house.pack(tmp_path / "site")
    second = house.pack(tmp_path / "site")
    assert (second.made, second.reused) == ((), ("patch home", "patch media", "patch router"))
    assert (second.written.new, second.written.removed) == (0, 0)


@pytest.mark.slow
def test_pack_makes_only_what_changed(house: House, tmp_path: Path, models: Path) -> None:
    shutil.copyfile(models / "kitchen.cact", house.folder / "media.cact")
    assert house.pack(tmp_path / "site").made == ("patch media",)
    shutil.copyfile(models / "calendar.cact", house.folder / "base.cact")
    assert house.pack(tmp_path / "site").made == ("patch home", "patch media", "patch router")


@pytest.mark.slow
def test_other_part_size_or_title_makes_no_model_again(house: House, tmp_path: Path) -> None:
    before = house.pack(tmp_path / "site")
    (house.folder / "family.toml").write_text(FAMILY.replace("A house", "My house"))
    after = house.pack(tmp_path / "site", part_bytes=4096)
    assert after.made == ()
    assert before.release != after.release
    assert after.members[0].part_count == -(-MODEL_BYTES // 4096)


def test_other_engine_makes_the_patches_again(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine,) = read_engines("exact")
    data = engine.data + b"\x00\x03\x02no"  # A custom section changes the file and not what it does.
    other = dataclasses.replace(engine, data=data, sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(pack_module, "read_engines", lambda numerics: (other,))
    monkeypatch.setattr(patches, "make_patch", lambda base, target, **options: target)
    monkeypatch.setattr(patches, "apply_patch", lambda base, patch: patch)
    assert len(house.pack(tmp_path / "site").made) == 3


def test_damaged_cache_is_noticed_and_made_anew(house: House, tmp_path: Path, packed_once: House) -> None:
    for path in (house.folder / "cache" / "objects").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert len(house.pack(tmp_path / "site").made) == 3
    assert tree(tmp_path / "site") == tree(packed_once.folder / "site")


@pytest.mark.slow
def test_interrupted_pack_leaves_the_old_site_and_the_next_one_goes_on(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.pack(tmp_path / "site")
    before = tree(tmp_path / "site")
    shutil.rmtree(house.folder / "cache")
    make = patches.make_patch
    made: list[int] = []

    def interrupted(base: bytes, target: bytes, **options: int) -> bytes:
        if made:
            raise KeyboardInterrupt
        made.append(1)
        return make(base, target, **options)

    monkeypatch.setattr(patches, "make_patch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        house.pack(tmp_path / "site", jobs=1, part_bytes=4096)
    assert tree(tmp_path / "site") == before
    monkeypatch.setattr(patches, "make_patch", make)
    assert len(house.pack(tmp_path / "site").reused) == 1
    assert tree(tmp_path / "site") == before


@pytest.mark.slow
def test_release_before_stays_for_open_tabs(house: House, tmp_path: Path, models: Path) -> None:
    house.pack(tmp_path / "site")
    before = tree(tmp_path / "site")
    shutil.copyfile(models / "kitchen.cact", house.folder / "media.cact")
    house.pack(tmp_path / "site")
    after = tree(tmp_path / "site")
    assert after["previous.json"] == before["family.json"]
    old = read_manifest(before["family.json"])
    assert {part.path for member in old.members for part in member.delivery.parts} < set(after)
    assert verify(tmp_path / "site").mismatches == []
    house.pack(tmp_path / "site", keep_previous=False)
    assert "previous.json" not in tree(tmp_path / "site")
    assert verify(tmp_path / "site").mismatches == []


def test_router_may_be_the_base_itself(house: House, tmp_path: Path) -> None:
    shutil.copyfile(house.folder / "base.cact", house.folder / "router.cact")
    report = house.pack(tmp_path / "site")
    assert report.members[1].changed_codes == 0
    assert report.members[1].delivered_bytes < 1000
    assert open_site(tmp_path / "site").member_bytes("router") == (house.folder / "base.cact").read_bytes()


def test_more_effort_makes_the_patches_again_and_smaller(house: House, tmp_path: Path) -> None:
    (house.folder / "family.toml").write_text(FAMILY.split("[[specialists]]")[0])
    quick = house.pack(tmp_path / "site")
    small = house.pack(tmp_path / "site", effort=1)
    assert (quick.made, small.made) == ((), ("patch router",))
    assert small.family_bytes < quick.family_bytes


def test_progress_counts_the_done_share_of_each_patch_and_never_falls(house: House, tmp_path: Path) -> None:
    told: list[tuple[str, float, int]] = []
    options = Options(
        part_bytes=2**20, jobs=2, cache_folder=tmp_path / "cache", web_folder=house.web, effort=0
    )
    family = load_family(house.folder / "family.toml")
    pack(family, tmp_path / "site", options, lambda *step: told.append(step))
    behind = [done for _, done, _ in told]
    assert behind == sorted(behind)
    assert (behind[0], behind[-1], told[-1][2]) == (0, 3, 3)
    for member in ("router", "home", "media"):
        assert len([step for step, _, _ in told if step == f"patch {member}"]) > 10, "told part by part"


def test_adapter_seed_reaches_the_patch_maker(
    tmp_path: Path, models: Path, web: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named start makes a patch smaller; another seed is no harm, so only the call can show it."""
    family = write_router_family(tmp_path)
    tensors = load_file(DEMO / "home.lora.safetensors")
    with safe_open(DEMO / "home.lora.safetensors", "np") as file:
        metadata = file.metadata()
    seeds = []

    def spy(base: bytes, target: bytes, **options: int) -> bytes:
        seeds.append(options["adapter_seed"])
        return target

    def exported(self: Exporters, member: Any, progress: Any) -> bytes:
        return (models / f"{member.id}.cact").read_bytes()

    monkeypatch.setattr(Exporters, "export", exported)
    monkeypatch.setattr(patches, "make_patch", spy)
    monkeypatch.setattr(patches, "apply_patch", lambda base, patch: patch)
    options = Options(part_bytes=2**20, jobs=1, cache_folder=tmp_path / "cache", web_folder=web(), effort=0)
    for seed in ("77", "null"):
        save_file(tensors, tmp_path / "router.lora.safetensors", metadata | {"seed": seed})
        pack(load_family(family), tmp_path / "site", options, quiet)
    assert seeds == [77, 0]


@pytest.mark.slow
def test_publisher_chooses_the_numerics(house: House, tmp_path: Path) -> None:
    report = house.pack(tmp_path / "site", numerics="fast")
    assert open_site(tmp_path / "site").manifest.numerics == "fast"
    assert report.made == ()


@pytest.mark.slow
def test_fast_site_has_a_second_engine_and_an_exact_one_has_not(house: House, tmp_path: Path) -> None:
    report = house.pack(tmp_path / "site", numerics="fast")
    plain, relaxed = read_engines("fast")
    engine = open_site(tmp_path / "site").manifest.engine
    assert engine.relaxed is not None
    assert [module.sha256 for module in engine.modules] == [plain.sha256, relaxed.sha256]
    assert (tmp_path / "site" / engine.relaxed.path).read_bytes() == relaxed.data
    assert report.engine_bytes == max(len(plain.data), len(relaxed.data)), "a visitor takes one of the two"
    house.pack(tmp_path / "site")
    assert open_site(tmp_path / "site").manifest.engine.relaxed is None
    assert engine.relaxed.path in tree(tmp_path / "site"), "for open tabs"
    assert verify(tmp_path / "site").mismatches == []
    (tmp_path / "site" / engine.relaxed.path).unlink()
    assert [engine.relaxed.path in sentence for sentence in verify(tmp_path / "site").mismatches] == [True]


def test_family_may_be_a_base_alone(house: House, tmp_path: Path) -> None:
    (house.folder / "family.toml").write_text(FAMILY.split("[router]")[0])
    report = house.pack(tmp_path / "site")
    assert [cost.id for cost in report.members] == ["base"]
    assert verify(tmp_path / "site").mismatches == []


def _norms_only(data: bytes) -> bytes:
    """A member in which every code is the base's and one norm is not."""

    def change(index: int, blob: Blob) -> Blob:
        if index or blob.kind is not Kind.CQ:
            return blob
        norms = np.frombuffer(bytes(blob.data)[-2:], "<f2") * np.float16(2)
        return dataclasses.replace(blob, data=bytes(blob.data)[:-2] + norms.tobytes())

    return rewritten(data, change)


def _other_tokenizer(data: bytes) -> bytes:
    def change(index: int, blob: Blob) -> Blob:
        if blob.kind is not Kind.RAW:
            return blob
        return dataclasses.replace(blob, data=bytes(blob.data).replace(b"light", b"night"))

    return rewritten(data, change)


def _other_bits(data: bytes) -> bytes:
    """The embedding at 2 bits instead of 4."""

    def change(index: int, blob: Blob) -> Blob:
        if index:
            return blob
        code_bytes = blob.shape[0] * blob.shape[1] // 2
        halved = bytes(blob.data)[: code_bytes // 2] + bytes(blob.data)[code_bytes:]
        return dataclasses.replace(blob, data=halved, bits=2)

    return rewritten(data, change)


CANNOT_WORK: dict[str, tuple[Callable[[bytes, bytes], bytes], str]] = {
    "the base itself": (lambda base, member: base, "home: model: is byte for byte base"),
    "norms only": (
        lambda base, member: _norms_only(base),
        "home: codes: is all equal to the base's, only norms,",
    ),
    "another tokenizer": (lambda base, member: _other_tokenizer(member), "home: has another tokenizer"),
    "another window": (
        lambda base, member: rewritten(member, sliding_window=64),
        "home: sliding_window is 64, the base has 128",
    ),
    "another context": (
        lambda base, member: rewritten(member, max_seq_len=1024),
        "home: max_seq_len is 1024, the base has 512",
    ),
    "another bit width": (
        lambda base, member: _other_bits(member),
        "home: tensor embedding: is 2 bits, must be 4 bits",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CANNOT_WORK)
def test_specialist_that_cannot_work_is_refused_before_anything_is_written(
    house: House, tmp_path: Path, case: str
) -> None:
    change, words = CANNOT_WORK[case]
    base, path = (house.folder / "base.cact").read_bytes(), house.folder / "home.cact"
    path.write_bytes(change(base, path.read_bytes()))
    with pytest.raises(FamilyError) as caught:
        house.pack(tmp_path / "site")
    assert words in str(caught.value)
    assert caught.value.code in ("same_model", "other_tokenizer", "other_geometry", "other_bits")
    assert not (tmp_path / "site").exists()


def test_two_specialists_that_are_one_are_refused(house: House, tmp_path: Path) -> None:
    shutil.copyfile(house.folder / "home.cact", house.folder / "media.cact")
    with pytest.raises(FamilyError, match="media: model: is byte for byte home"):
        house.pack(tmp_path / "site")


@pytest.mark.parametrize("data", [b"", b"<!doctype html>", b"version https://git-lfs.github.com/spec/v1\n"])
def test_file_that_is_no_container_is_refused_by_name(house: House, tmp_path: Path, data: bytes) -> None:
    (house.folder / "media.cact").write_bytes(data)
    with pytest.raises(ContainerError, match=r"media\.cact"):
        house.pack(tmp_path / "site")


def test_broken_page_is_refused_before_any_model_is_touched(
    house: House, tmp_path: Path, web: Callable[..., Path]
) -> None:
    (house.folder / "media.cact").unlink()
    broken = web("broken", **{"page/main.js": 'import "./gone.js";\n'})
    with pytest.raises(RefusedError, match=r"gone\.js"):
        house.pack(tmp_path / "site", web_folder=broken)


def test_folder_of_somebody_else_is_refused_before_any_model_is_touched(house: House, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("important")
    (house.folder / "media.cact").unlink()
    with pytest.raises(RefusedError, match=r"thesis\.txt"):
        house.pack(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_model_that_changes_while_it_is_packed_is_refused(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pack_module.write_release

    def change_first(*arguments: Any, **named: Any) -> Any:
        path = house.folder / "base.cact"
        path.write_bytes(path.read_bytes()[::-1])
        return write(*arguments, **named)

    monkeypatch.setattr(pack_module, "write_release", change_first)
    with pytest.raises(RefusedError, match="was changed while it was packed"):
        house.pack(tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
def test_adapter_that_is_written_while_it_is_exported_never_reaches_the_cache(
    tmp_path: Path, web: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    family = write_router_family(tmp_path)
    shutil.copyfile(DEMO / "home.lora.safetensors", tmp_path / "router.lora.safetensors")
    export = Exporters.export

    def export_late(self: Exporters, member: Any, progress: Any) -> bytes:
        data = export(self, member, progress)
        if member.adapter:
            shutil.copyfile(DEMO / "media.lora.safetensors", member.adapter)
        return data

    monkeypatch.setattr(Exporters, "export", export_late)
    options = Options(part_bytes=2**20, jobs=1, cache_folder=tmp_path / "cache", web_folder=web())
    with pytest.raises(RefusedError, match=r"router\.lora\.safetensors: was changed while it was packed"):
        pack(load_family(family), tmp_path / "site", options, quiet)
    assert len(list((tmp_path / "cache" / "keys").iterdir())) == 1  # the base


@pytest.mark.slow
def test_demo_family_packs_from_its_checkpoints(
    tmp_path: Path, demo_family: DemoFamily, web: Callable[..., Path]
) -> None:
    options = Options(part_bytes=2**23, jobs=2, cache_folder=tmp_path / "cache", web_folder=web())
    report = pack(load_family(DEMO / "family.toml"), tmp_path / "site", options, quiet)
    names = ["router", "home", "kitchen", "media", "calendar"]
    assert list(report.made) == sorted(
        [f"export {name}" for name in ["base", *names]] + [f"patch {name}" for name in names]
    )
    opened = open_site(tmp_path / "site")
    for name in ["base", *names]:
        assert opened.member_bytes(name) == (demo_family.folder / f"{name}.cact").read_bytes()
    again = pack(load_family(DEMO / "family.toml"), tmp_path / "b", options, quiet)
    assert again.made == ()
    assert tree(tmp_path / "b") == tree(tmp_path / "site")
