from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.publish.cache import Cache, Made
from builder.publish.parts import cut, parse_part_size


def objects(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "objects").iterdir())


def put(cache: Cache, name: str, data: bytes) -> Made:
    return cache.put({"step": name}, data, {})


def test_what_was_put_is_got_again_by_another_run(tmp_path: Path) -> None:
    made = Cache(tmp_path).put({"step": "x", "of": [1, "a"]}, b"data", {"changed_codes": 0.25})
    assert Cache(tmp_path).get({"of": [1, "a"], "step": "x"}) == made
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


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{}", b'{"sha256":5,"facts":{}}', b'{"sha256":"00","facts":{}}', b"\xff"]
)
def test_damaged_key_is_not_used(tmp_path: Path, damage: bytes) -> None:
    cache = Cache(tmp_path)
    put(cache, "x", b"data")
    for path in (tmp_path / "keys").iterdir():
        path.write_bytes(damage)
    assert cache.get({"step": "x"}) is None


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


def test_cache_keeps_itself_out_of_git(tmp_path: Path) -> None:
    Cache(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache" / ".gitignore").read_text() == "*\n"


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 3000), part=st.integers(1, 1000))
def test_parts_joined_are_the_file(tmp_path_factory: pytest.TempPathFactory, size: int, part: int) -> None:
    origin = tmp_path_factory.getbasetemp() / "origin.bin"
    data = bytes(index * 7 % 251 for index in range(size))
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
