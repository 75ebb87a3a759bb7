from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import RefusedError, UsageError
from builder.publish import cache as cache_module
from builder.publish.cache import Cache, Made
from builder.publish.lock import locked
from builder.publish.parts import cut, parse_part_size


def objects(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "objects").iterdir())


def put(cache: Cache, name: str, data: bytes) -> Made:
    return cache.put({"step": name}, data, {})


def test_what_was_put_is_got_again_by_another_run(tmp_path: Path) -> None:
    made = Cache(tmp_path).put({"step": "x", "of": [1, "a"]}, b"data", {"changed_codes": 0.25})
    assert Cache(tmp_path).get({"of": [1, "a"], "step": "x"}, ["changed_codes"]) == made
    assert Cache(tmp_path).get({"of": [1, "a"], "step": "x"}) is None
    assert made.path.read_bytes() == b"data"
    assert made.facts == {"changed_codes": 0.25}


def test_other_ingredients_find_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put(cache, "x", b"data")
    assert cache.get({"step": "y"}) is None


@pytest.mark.parametrize("damage", [b"", b"date", b"data\n"])
def test_damaged_object_is_not_used_again(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    put(cache, "x", b"data").path.write_bytes(damage)
    assert cache.get({"step": "x"}) is None
    assert put(cache, "x", b"data").path.read_bytes() == b"data"


DAMAGED_KEYS = [b"", b"[]", b"{}", b"\xff", b"[" * 4000, b'{"sha256":5,"facts":{},"seal":""}']
DAMAGED_FACTS = [
    "{}",
    '"x"',
    "null",
    '{"changed_codes": 7}',
    '{"changed_codes": NaN}',
    '{"changed_codes": 0.5}',
]


@pytest.mark.parametrize("damage", DAMAGED_KEYS)
def test_damaged_key_is_not_used_and_pruned(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    put(cache, "x", b"data")
    for path in (tmp_path / "keys").iterdir():
        path.write_bytes(damage)
    assert cache.get({"step": "x"}) is None
    cache.prune()
    assert list((tmp_path / "keys").iterdir()) == []


@pytest.mark.parametrize("damage", DAMAGED_FACTS)
def test_damaged_facts_are_not_believed(tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path)
    cache.put({"step": "x"}, b"data", {"changed_codes": 0.25})
    for path in (tmp_path / "keys").iterdir():
        path.write_text(path.read_text().replace('{"changed_codes": 0.25}', damage))
    assert cache.get({"step": "x"}, ["changed_codes"]) is None


def test_entry_of_another_key_is_not_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put(cache, "x", b"data")
    (path,) = (tmp_path / "keys").iterdir()
    put(cache, "y", b"other")
    for other in (tmp_path / "keys").iterdir():
        other.write_bytes(path.read_bytes())
    assert cache.get({"step": "y"}) is None
    assert cache.get({"step": "x"}) is not None


def test_key_that_names_a_file_elsewhere_touches_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    cache = Cache(tmp_path / "cache")
    put(cache, "x", b"data")
    (path,) = (tmp_path / "cache" / "keys").iterdir()
    for sha256 in ("../../victim.txt", str(victim), "0" * 63, "\0" * 64):
        path.write_text(json.dumps({"sha256": sha256, "facts": {}}))
        assert cache.get({"step": "x"}) is None
        path.write_text(
            json.dumps({"sha256": sha256, "facts": {}, "seal": cache_module._seal(path, sha256, {})})
        )
        assert cache.get({"step": "x"}) is None
    cache.prune()
    assert victim.read_text() == "mine"


def test_folder_with_other_files_is_refused_and_untouched(tmp_path: Path) -> None:
    for name in ("keys/id_rsa", "objects/notes.txt", ".gitignore"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RefusedError, match="--cache: is a folder with other files, must be new, empty or"):
        Cache(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_no_pack_wrote_stay(tmp_path: Path) -> None:
    (tmp_path / ".saguaro-cache").mkdir()
    (tmp_path / ".saguaro-cache" / ".gitignore").write_text("mine")
    cache = Cache(tmp_path / ".saguaro-cache")
    mine = [cache.folder / "objects" / "notes.txt", cache.folder / "keys" / "id_rsa"]
    for path in mine:
        path.write_text("mine")
    (cache.folder / "objects" / ("a" * 64)).symlink_to(mine[0])
    cache.prune()
    assert [path.read_text() for path in [*mine, cache.folder / ".gitignore"]] == ["mine"] * 3
    assert (cache.folder / "objects" / ("a" * 64)).is_symlink()


def test_nothing_is_pruned_while_another_pack_uses_the_cache(tmp_path: Path) -> None:
    put(Cache(tmp_path), "x", b"data")
    cache = Cache(tmp_path)
    with Cache(tmp_path).in_use():
        cache.prune()
        assert len(objects(tmp_path)) == 1
    cache.prune()
    assert objects(tmp_path) == []


def test_pruning_keeps_what_was_used_and_as_much_again(tmp_path: Path) -> None:
    old = Cache(tmp_path)
    for age, name in enumerate(("oldest", "older", "used", "newest")):
        os.utime(put(old, name, name.encode() * 10).path, ns=(age, age))
    now = Cache(tmp_path)
    assert now.get({"step": "used"}) is not None
    put(now, "new", b"x" * 25)
    now.prune()
    left = [name for name in ("oldest", "older", "used", "newest", "new") if old.get({"step": name})]
    assert left == ["used", "newest", "new"]
    assert len(list((tmp_path / "keys").iterdir())) == 3


def test_pack_waits_while_another_one_prunes(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entered = threading.Event()

    def use() -> None:
        with cache.in_use() as held:
            assert held
            entered.set()

    thread = threading.Thread(target=use)
    with locked(tmp_path) as alone:
        assert alone
        thread.start()
        assert not entered.wait(0.05)
    thread.join(60)
    assert entered.is_set()


def test_cache_keeps_itself_out_of_git(tmp_path: Path) -> None:
    Cache(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache" / ".gitignore").read_text() == "*\n"


@settings(deadline=None, max_examples=25)
@given(size=st.integers(1, 3000), part=st.integers(1, 1000))
def test_parts_joined_are_the_file(tmp_path_factory: pytest.TempPathFactory, size: int, part: int) -> None:
    origin = tmp_path_factory.getbasetemp() / "origin.bin"
    data = (bytes(range(251)) * 12)[:size]
    origin.write_bytes(data)
    parts = cut(origin, part)
    assert b"".join(piece.read() for piece in parts) == data
    assert all(piece.byte_count == len(piece.read()) <= part for piece in parts)
    assert len(parts) == -(-size // part)


@pytest.mark.parametrize(
    ("text", "byte_count"),
    [("8MiB", 8388608), ("25MiB", 26214400), ("4KiB", 4096), ("5000", 5000), ("26214400", 26214400)],
)
def test_part_size_reads_units(text: str, byte_count: int) -> None:
    assert parse_part_size(text) == byte_count


@pytest.mark.parametrize(
    "text", ["26MiB", "26214401", "1", "4095", "0", "", "8", "8MB", "-8MiB", "8 MiB", "0x1000", "9" * 5000]
)
def test_part_size_outside_of_what_hosts_take_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--part-size"):
        parse_part_size(text)
