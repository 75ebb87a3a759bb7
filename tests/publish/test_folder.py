from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from builder import files
from builder.errors import RefusedError
from builder.publish.folder import Written, read_present, site_files, write_release
from builder.publish.lock import locked
from builder.publish.manifest import write_manifest
from tests.publish.family_fields import family_fields, part, sha

STEPS = 6  # Files that a release of `release()` puts in place, over nothing or over another one.


def release(title: str) -> dict[str, dict[str, bytes]]:
    """A release of one part, an engine and a page; part and app folder differ from title to title."""
    fields = family_fields() | {
        "title": title,
        "specialists": [],
        "app": {"path": f"app/{sha(title)[:12]}", "sha256": sha(title)},
    }
    del fields["router"]
    only = part(title, 1000)
    fields["base"] |= {
        "sha256": only["sha256"],
        "delivery": {"kind": "whole", "bytes": 1000, "parts": [only]},
    }
    immutable = {
        only["path"]: title.encode(),
        fields["engine"]["path"]: b"engine",
        f"{fields['app']['path']}/page/main.js": title.encode(),
    }
    page = {"index.html": f"index {title}".encode(), "sw.js": f"sw {title}".encode()}
    return {"immutable": immutable, "replaced": {**page, "family.json": write_manifest(fields)}}


def write(folder: Path, title: str, keep_previous: bool = True) -> Written:
    return write_release(folder, **release(title), keep_previous=keep_previous)


def tree(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in site_files(folder)} if folder.exists() else {}


def whole(title: str) -> dict[str, bytes]:
    files: Any = release(title)
    return files["immutable"] | files["replaced"]


def test_new_site_holds_the_release_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "site", "one")
    assert tree(tmp_path / "site") == whole("one")


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "one")
    assert tree(tmp_path) == whole("one")


def test_release_before_is_kept_for_open_tabs_and_older_ones_go(tmp_path: Path) -> None:
    for title in ("one", "two", "three"):
        written = write(tmp_path, title)
    kept: Any = release("two")["immutable"]
    assert tree(tmp_path) == {**kept, **whole("three"), "previous.json": whole("two")["family.json"]}
    assert written.removed == 2


def test_packing_the_same_release_again_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two")
    before = tree(tmp_path)
    times = {path: (tmp_path / path).stat().st_mtime_ns for path in before}
    written = write(tmp_path, "two")
    assert tree(tmp_path) == before
    assert times == {path: (tmp_path / path).stat().st_mtime_ns for path in before}
    assert (written.new, written.removed) == (0, 0)


def test_release_before_can_be_dropped(tmp_path: Path) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two")
    write(tmp_path, "two", keep_previous=False)
    assert tree(tmp_path) == whole("two")


def test_damaged_file_is_healed(tmp_path: Path) -> None:
    write(tmp_path, "one")
    path = next(path for path in tree(tmp_path) if path.startswith("parts/"))
    (tmp_path / path).write_bytes(b"damaged")
    write(tmp_path, "one")
    assert tree(tmp_path) == whole("one")


def test_files_of_the_deployment_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, "one")
    others = {
        "CNAME": b"example.org\n",
        "parts/readme.txt": b"mine\n",
        "app/other/x.js": b"mine\n",
        "engine.wasm": b"mine\n",
    }
    hidden = {".git": b"gitdir: elsewhere\n", ".nojekyll": b""}
    for path, data in (others | hidden).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    write(tmp_path, "two", keep_previous=False)
    assert tree(tmp_path) == whole("two") | others
    assert all((tmp_path / path).read_bytes() == data for path, data in hidden.items())


def test_release_is_put_in_place_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def replace(source: Path, target: Path) -> None:
        names.append(target.name)
        os.rename(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    write(tmp_path, "one")
    assert len(names) == STEPS
    names.clear()
    write(tmp_path, "two")
    assert len(names) == STEPS
    assert names[2:] == ["previous.json", "sw.js", "index.html", "family.json"]


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("first", [True, False])
def test_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, failure: BaseException, first: bool
) -> None:
    site = tmp_path / "site"
    if not first:
        write(site, "one")
    before = tree(site)
    calls = itertools.count()

    def replace(source: Path, target: Path) -> None:
        if next(calls) == step:
            raise failure
        os.rename(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else RefusedError):
        write(site, "two")
    assert tree(site) == before
    assert site.exists() != first


@pytest.mark.parametrize("step", range(STEPS))
def test_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """From some write on there is no room for any, not even for putting things back."""
    write(tmp_path, "one")
    before = tree(tmp_path)
    calls = itertools.count()

    def write_bytes(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            if next(calls) >= step:
                raise OSError(28, "No space left on device")
            return file.write(data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(RefusedError, match=r"cannot be written: no space left on device") as caught:
        write(tmp_path, "two")
    assert str(tmp_path) in str(caught.value)
    assert tree(tmp_path) == before


def test_old_bytes_are_put_back_where_files_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    write(tmp_path, "one")
    write(tmp_path, "two")
    assert (tmp_path / "previous.json").read_bytes() == whole("one")["family.json"]
    test_failed_write_leaves_what_was_there(tmp_path, monkeypatch, STEPS - 1, OSError(28, "full"), False)


def test_file_that_cannot_be_put_back_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "one")
    before = tree(tmp_path)

    def replace(source: Path, target: Path) -> None:
        if target.name == "family.json" or (target.name == "sw.js" and str(source).endswith("-0.writing")):
            raise OSError(5, "Input/output error")
        os.rename(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(RefusedError, match="input/output error"):
        write(tmp_path, "two")
    assert tree(tmp_path) == before | {"sw.js": b"sw two"}


def test_empty_folder_of_the_user_stays_after_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(files.os, "replace", replace)
    for site in (tmp_path / "mine", tmp_path / "new" / "deep"):
        with pytest.raises(RefusedError):
            write(site, "one")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "mine"]


@pytest.mark.parametrize("path", ["sw.js", "family.json", "previous.json"])
def test_folder_in_the_place_of_a_file_is_refused_before_anything_is_written(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / path).mkdir()
    for call in (lambda: read_present(tmp_path), lambda: write(tmp_path, "one")):
        with pytest.raises(RefusedError, match=f"{path}: path: is no file, must be a file or nothing"):
            call()
    assert sorted(tmp_path.rglob("*")) == [tmp_path / path]


def test_folder_in_the_place_of_a_part_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    part_path = next(iter(release("one")["immutable"]))
    (tmp_path / part_path).mkdir(parents=True)
    with pytest.raises(RefusedError, match="path: is no file"):
        write(tmp_path, "one")
    assert tree(tmp_path) == {}


def test_two_packs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    site = tmp_path / "site"
    write(site, "one")
    before = tree(site)
    with locked(site), pytest.raises(RefusedError, match="site: another pack is writing there"):
        write(site, "two")
    assert tree(site) == before
    write(site, "two")


def test_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dang").symlink_to("nowhere")
    with pytest.raises(RefusedError, match="dang is a link to nothing, not a folder"):
        write(tmp_path / "dang", "one")
    assert not (tmp_path / "nowhere").exists()


def test_killed_pack_is_healed_by_the_next(tmp_path: Path) -> None:
    write(tmp_path, "one")
    for path, data in whole("two").items():
        if path.startswith(("parts", "app")):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{path}.123-456.writing").write_bytes(data[:5])
    (tmp_path / "family.json.123-456.writing").write_bytes(b"{")
    write(tmp_path, "three", keep_previous=False)
    assert tree(tmp_path) == whole("three")


def test_killed_first_pack_is_healed_by_the_next(tmp_path: Path) -> None:
    for path, data in release("one")["immutable"].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    write(tmp_path, "two")
    assert tree(tmp_path) == whole("two")


STRANGE = {
    "somebody's page": {"index.html": b"<h1>My home page</h1>"},
    "somebody's project": {"app/main.py": b"", "parts/list.txt": b""},
    "one other file": {f"parts/{sha('x')}.bin": b"", "notes.txt": b""},
    "a broken manifest": {"family.json": b"{}"},
    "a manifest of tomorrow": {"family.json": b'{"format":"saguaro-family","version":2}'},
}


@pytest.mark.parametrize("case", STRANGE)
def test_folder_that_holds_something_else_is_refused_and_untouched(tmp_path: Path, case: str) -> None:
    for path, data in STRANGE[case].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    with pytest.raises(RefusedError, match="another"):
        write(tmp_path, "one")
    assert tree(tmp_path) == STRANGE[case]


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site").write_bytes(b"")
    with pytest.raises(RefusedError, match="is a file, must be a folder"):
        read_present(tmp_path / "site")
