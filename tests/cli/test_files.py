from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from builder.errors import FamilyError, RefusedError
from builder.files import check_folder, check_target, load_json, read_regular, write_whole


def refused(call: object, *arguments: object) -> str:
    with pytest.raises(RefusedError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    assert refused(read_regular, path, 4) == f"{path}: size: is 5 bytes, must be at most 4 bytes"


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe, not a file" in refused(read_regular, tmp_path / "pipe")
    assert "is a device, not a file" in refused(read_regular, Path("/dev/zero"))
    assert "is a folder, not a file" in refused(read_regular, tmp_path)
    assert "no such file or directory" in refused(read_regular, tmp_path / "gone")
    assert "changes while it is read" in refused(read_regular, Path("/proc/self/status"))
    assert "no file can have this name" in refused(read_regular, Path("a\0b"))


def test_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.cact"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    with pytest.raises(FamilyError, match="is a Git LFS pointer") as caught:
        read_regular(path, error=FamilyError)
    assert caught.value.code == "lfs_pointer"


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"[" * 100_000,
        b'{"a":1,"a":2}',
        b"[NaN]",
        b"[-Infinity]",
        b"[1e999]",
        b"1" * 5000,
        b"\xef\xbb\xbf\xef\xbb\xbf1",
    ],
)
def test_json_that_languages_read_differently_is_refused(text: bytes) -> None:
    assert refused(load_json, text, "x.json").startswith("x.json: document: is n")


def test_an_empty_document_is_called_empty():
    assert refused(load_json, b"", "x.json") == "x.json: document: is empty, must be JSON"


def test_a_key_that_stands_twice_is_found_at_once_among_many() -> None:
    keys = b",".join(b'"%d":0' % number for number in range(100_000))
    assert "the key '99999' stands twice" in refused(load_json, b"{" + keys + b',"99999":0}', "x.json")


def test_json_may_have_a_byte_order_mark() -> None:
    assert load_json(b'\xef\xbb\xbf{"a":[1.5,null]}', "x.json") == {"a": [1.5, None]}


def test_target_that_is_no_file_or_an_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"data")
    (tmp_path / "again").hardlink_to(tmp_path / "in")
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    for name, kind in [("pipe", "a pipe"), ("link", "a device"), ("", "a folder")]:
        assert f"is {kind}, not a file" in refused(write_whole, tmp_path / name, b"")
    assert "in is no folder" in refused(check_target, tmp_path / "in" / "x")
    assert "gone is no folder" in refused(check_target, tmp_path / "gone" / "x")
    assert "is the same file as" in refused(check_target, tmp_path / "again", [tmp_path / "in"])
    assert "no file can have this name" in refused(check_target, Path("a\0b"))
    assert (tmp_path / "link").is_symlink()
    check_target(tmp_path / "new", [tmp_path / "in"])


def test_place_where_no_folder_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "dang").symlink_to("nowhere")
    assert "file is a file, not a folder" in refused(check_folder, tmp_path / "file" / "x")
    assert "dang is a link to nothing, not a folder" in refused(check_folder, tmp_path / "dang")
    check_folder(tmp_path / "new" / "deeper")
    assert not (tmp_path / "new").exists()


def test_written_file_honours_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", b"data")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_failed_write_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    (tmp_path / "a").write_bytes(b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        sentence = refused(write_whole, tmp_path / "a", b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert sentence == f"{tmp_path / 'a'}: cannot be written: file too large"
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]
