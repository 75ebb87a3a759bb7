"""Earlier releases that cannot be had: what `pack --previous` says of spoilt folders and addresses."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from builder.errors import ManifestError, UsageError
from builder.publish.manifest import MANIFEST_BYTES_MAX
from builder.publish.previous import FILE_SECONDS, fetch, open_address, redirected
from builder.publish.serve import serving
from builder.publish.site import open_site
from tests.publish import hostile_server as faults
from tests.publish.conftest import PART_BYTES, House, flip, refuse, sha256
from tests.publish.hostile_server import HostileHandler, HostileServer


def base_part(site: Path) -> Path:
    return site / open_site(site).manifest.base.delivery.parts[1].path


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "which is not there, must be a site's folder"),
    "no manifest": (
        lambda site: (site / "family.json").unlink(),
        "where family.json is missing, must be a site's folder with its family.json",
    ),
    "a file": (
        lambda site: (shutil.rmtree(site), site.touch()),
        "which is no folder, must be a site's folder",
    ),
    "empty manifest": (
        lambda site: (site / "family.json").write_bytes(b""),
        "family.json: document: is empty,",
    ),
    "damaged manifest": (lambda site: flip(site / "family.json"), "family.json: "),
    "damaged part": (lambda site: flip(base_part(site)), "sha256: is"),
    "missing part": (lambda site: base_part(site).unlink(), "file: is missing"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_folder_is_refused_and_nothing_is_written(
    alone: House, first: Path, tmp_path: Path, case: str
) -> None:
    spoil, words = SPOILT[case]
    spoil(first)
    refuse(alone, tmp_path, str(first), words)


def test_spoilt_release_is_refused_although_the_cache_has_its_patch(
    alone: House, first: Path, tmp_path: Path
) -> None:
    alone.pack(tmp_path / "warm", previous=(str(first),))
    flip(base_part(first))
    refuse(alone, tmp_path, str(first), "sha256: is")


def too_large(handler: HostileHandler, path: Path) -> None:
    body = path.read_bytes() + b" " * MANIFEST_BYTES_MAX
    handler.reply(body, {"Content-Type": "application/json", "Content-Length": str(len(body))})


def to_a_file(handler: HostileHandler, path: Path) -> None:
    """A redirect to the right file, on the disk of whoever follows it."""
    headers = {"Location": f"file://{path}", "Content-Length": "0"}
    handler.reply(b"", headers, HTTPStatus.FOUND)


def to(location: str) -> faults.Fault:
    """A redirect; `{port}` is the server's."""

    def fault(handler: HostileHandler, path: Path) -> None:
        headers = {"Location": location.format(port=handler.server.server_address[1]), "Content-Length": "0"}
        handler.reply(b"", headers, HTTPStatus.FOUND)

    return fault


def read_base(address: str) -> bytes:
    return open_address(address).member_bytes("base")


HOSTS: dict[str, tuple[str, faults.Fault, str, str]] = {
    "no manifest": ("family.json", faults.missing, "status: is 404, must be 200", "part_missing"),
    "a page for everything": (
        "*",
        faults.html_page,
        "family.json: document: is not JSON",
        "manifest_damaged",
    ),
    "cut manifest": ("family.json", faults.truncated, "is not JSON", "manifest_damaged"),
    "endless manifest": (
        "family.json",
        too_large,
        "size: is larger, must be at most 1048576",
        "part_too_long",
    ),
    "broken host": ("parts/*", faults.broken, "status: is 500", "server_error"),
    "flipped bit": ("parts/*", faults.flipped, "sha256: is", "part_hash_mismatch"),
    "Git LFS pointer": ("parts/*", faults.lfs_pointer, "is a Git LFS pointer", "part_is_lfs_pointer"),
    "cut connection": ("parts/*", faults.cut_at(50), "cannot be read: ", "network"),
    "redirect to another host": (
        "family.json",
        to("http://localhost:{port}/family.json"),
        "/family.json, must be to the same host, and not from https to http",
        "part_missing",
    ),
    "redirects without end": ("family.json", to("family.json?"), "redirects: is more than 5", "part_missing"),
    "redirect to nowhere": ("family.json", to("http://[::1/"), "cannot be read: ", "network"),
    "redirect to a file": ("family.json", to_a_file, "family.json", "part_missing"),
}


@pytest.mark.parametrize("case", HOSTS)
def test_spoilt_host_is_refused_and_nothing_is_written(
    alone: House, first: Path, tmp_path: Path, case: str
) -> None:
    pattern, fault, words, code = HOSTS[case]
    with serving(HostileServer(first)) as server:
        server.on(pattern, fault)
        refuse(alone, tmp_path, server.url, words)
        with pytest.raises(ManifestError) as caught:
            read_base(server.url)
    assert caught.value.code == code


def test_redirect_on_the_same_host_is_followed(first: Path) -> None:
    with serving(HostileServer(first)) as server:
        server.on("family.json", to("http://127.0.0.1:{port}/family.json"), times=1)
        assert sha256(read_base(server.url)) == open_site(first).manifest.base.sha256
        assert [seen.path for seen in server.seen][:2] == ["family.json", "family.json"]


@pytest.mark.parametrize(
    ("address", "location", "target"),
    [
        ("https://a.org/m/family.json", "../n/family.json", "https://a.org/n/family.json"),
        ("http://a.org/family.json", "https://a.org/family.json", "https://a.org/family.json"),
        ("https://a.org/family.json", "//A.org/x", "https://A.org/x"),
        ("https://a.org/family.json", "http://a.org/family.json", None),
        ("https://a.org/family.json", "//b.org/family.json", None),
        ("https://a.org/family.json", "https://a.org.b.org/family.json", None),
        ("http://a.org/family.json", "ftp://a.org/family.json", None),
    ],
)
def test_redirect_leads_to_no_other_host_and_not_out_of_https(
    address: str, location: str, target: str | None
) -> None:
    if target is not None:
        assert redirected(address, location) == target
        return
    with pytest.raises(
        ManifestError, match=r"^http.*: redirect: is to .*, must be to the same host"
    ) as caught:
        redirected(address, location)
    assert caught.value.code == "part_missing"


def test_host_that_takes_too_long_is_given_up(first: Path) -> None:
    with serving(HostileServer(first)) as server:
        times = iter([0.0, FILE_SECONDS, FILE_SECONDS + 1])
        part = server.url + open_site(first).manifest.base.delivery.parts[0].path
        with pytest.raises(ManifestError, match="it takes longer than 600 seconds") as caught:
            fetch(part, PART_BYTES, clock=lambda: next(times))
    assert caught.value.code == "network"


def test_host_that_compresses_nothing_and_says_no_length_will_do(first: Path) -> None:
    with serving(HostileServer(first)) as server:
        server.on("*", faults.without_length)
        assert sha256(read_base(server.url)) == open_site(first).manifest.base.sha256


def test_host_that_is_not_there_is_refused(alone: House, tmp_path: Path) -> None:
    with socket.socket() as silent:  # Bound and not listening: nobody else gets the port meanwhile.
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        refuse(alone, tmp_path, url, "family.json: cannot be read: connection refused; ")


@pytest.mark.parametrize(
    "address",
    [
        *("ftp://example.org/", "file:///srv/site", "https://", "http://a b/", "http://u:p@example.org/"),
        *("https://example.org/?x", "https://example.org/#x", "https://example.org:99999/", "https://[::1/"),
        "https://example.org/\x1b[31m",
    ],
)
def test_other_addresses_are_a_usage_error(alone: House, tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match=r"--previous: is .*, must be a site's folder") as caught:
        alone.pack(tmp_path / "site", previous=(address,))
    assert str(caught.value).isprintable()


def test_an_empty_place_is_not_the_folder_that_one_stands_in(
    alone: House, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(first)
    with pytest.raises(UsageError, match="--previous: is empty, must be a site's folder"):
        alone.pack(tmp_path / "site", previous=("",))
