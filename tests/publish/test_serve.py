from __future__ import annotations

import gzip
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.publish.serve import SiteServer, parse_range, serving, site_path
from tests.publish import hostile_server as hostile
from tests.publish.hostile_server import HostileServer

BODY = bytes(range(256)) * 40
PART = f"parts/{'a' * 64}.bin"
FILES = {
    PART: BODY,
    "engine.abcdef012345.wasm": b"\0asm",
    "app/abcdef012345/page/main.js": b"1;\n",
    "index.html": b"<!doctype html>\n",
    "sw.js": b"2;\n",
    "family.json": b"{}\n",
    ".git/config": b"secret\n",
}
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for path, data in FILES.items():
        (tmp_path / "site" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / path).write_bytes(data)
    (tmp_path / "outside.txt").write_bytes(b"secret\n")
    return tmp_path / "site"


@pytest.fixture
def server(site: Path) -> Iterator[SiteServer]:
    with serving(SiteServer(site, prefix="sub/path")) as running:
        yield running


@pytest.fixture
def hosts(site: Path) -> Iterator[HostileServer]:
    with serving(HostileServer(site)) as running:
        assert isinstance(running, HostileServer)
        yield running


def ask(server: SiteServer, target: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, headers=named)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "content", "caching"),
    [
        (PART, "application/octet-stream", "immutable"),
        ("engine.abcdef012345.wasm", "application/wasm", "immutable"),
        ("app/abcdef012345/page/main.js", "text/javascript; charset=utf-8", "immutable"),
        ("index.html", "text/html; charset=utf-8", "no-cache"),
        ("sw.js", "text/javascript; charset=utf-8", "no-cache"),
        ("family.json", "application/json; charset=utf-8", "no-cache"),
    ],
)
def test_each_file_has_its_type_and_its_caching(
    server: SiteServer, path: str, content: str, caching: str
) -> None:
    status, headers, body = ask(server, "/sub/path/" + path)
    assert (status, body) == (200, FILES[path])
    assert headers["Content-Type"] == content
    assert headers["Content-Length"] == str(len(body))
    assert caching in headers["Cache-Control"]
    assert "Content-Encoding" not in headers


def test_prefix_alone_is_the_page(server: SiteServer) -> None:
    assert ask(server, "/sub/path/")[2] == FILES["index.html"]
    assert ask(server, "/sub/path/?x=1")[2] == FILES["index.html"]
    status, headers, _ = ask(server, "/sub/path")
    assert (status, headers["Location"]) == (301, "/sub/path/")
    assert server.url.endswith("/sub/path/")


def test_head_is_get_without_the_body(server: SiteServer) -> None:
    status, headers, body = ask(server, "/sub/path/" + PART, "HEAD", Range="bytes=0-9")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(BODY)))


def test_connection_is_kept_and_a_head_leaves_nothing_on_it(server: SiteServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    for method, path, status in [
        ("HEAD", PART, 200),
        ("GET", "none", 404),
        ("HEAD", "none", 404),
        ("GET", "sw.js", 200),
    ]:
        connection.request(method, "/sub/path/" + path)
        response = connection.getresponse()
        assert response.status == status
        last = response.read()
    assert last == FILES["sw.js"]
    connection.close()


def test_known_version_is_not_sent_again(server: SiteServer) -> None:
    tag = ask(server, "/sub/path/" + PART)[1]["ETag"]
    for known in (tag, f'"x", W/{tag}', "*"):
        status, headers, body = ask(server, "/sub/path/" + PART, If_None_Match=known)
        assert (status, body, headers["ETag"]) == (304, b"", tag)
    assert ask(server, "/sub/path/" + PART, If_None_Match='"x"')[0] == 200


def test_changed_file_has_another_tag(server: SiteServer, site: Path) -> None:
    tag = ask(server, "/sub/path/family.json")[1]["ETag"]
    (site / "family.json").write_bytes(b'{"a":1}\n')
    assert ask(server, "/sub/path/family.json", If_None_Match=tag)[2] == b'{"a":1}\n'


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=100-199", 100, 199),
        ("bytes=10000-", 10000, 10239),
        ("bytes=-40", 10200, 10239),
    ],
)
def test_one_range_is_answered_with_206(server: SiteServer, header: str, first: int, last: int) -> None:
    status, headers, body = ask(server, "/sub/path/" + PART, Range=header)
    assert (status, body) == (206, BODY[first : last + 1])
    assert headers["Content-Range"] == f"bytes {first}-{last}/{len(BODY)}"


@pytest.mark.parametrize("header", ["bytes=10240-", "bytes=99999-100000", "bytes=-0"])
def test_range_outside_of_the_file_is_416(server: SiteServer, header: str) -> None:
    status, headers, _ = ask(server, "/sub/path/" + PART, Range=header)
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(BODY)}")


@pytest.mark.parametrize("header", ["bytes=0-1,5-6", "lines=0-1", "bytes=-", "bytes=5-2", "bytes=a-b", "0-1"])
def test_other_ranges_are_ignored(server: SiteServer, header: str) -> None:
    assert ask(server, "/sub/path/" + PART, Range=header)[::2] == (200, BODY)


def test_range_of_an_older_version_gives_the_whole_file(server: SiteServer) -> None:
    tag = ask(server, "/sub/path/" + PART)[1]["ETag"]
    assert ask(server, "/sub/path/" + PART, Range="bytes=0-1", If_Range=tag)[0] == 206
    assert ask(server, "/sub/path/" + PART, Range="bytes=0-1", If_Range='"old"')[::2] == (200, BODY)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(first=st.integers(0, 30), last=st.integers(0, 30), size=st.integers(0, 30))
def test_range_holds_the_bytes_that_a_slice_holds(first: int, last: int, size: int) -> None:
    data = bytes(range(size))
    try:
        found = parse_range(f"bytes={first}-{last}", size)
    except ValueError:
        assert first >= size
    else:
        assert (data[found.first : found.last + 1] if found else None) == (
            data[first : last + 1] if last >= first else None
        )


@pytest.mark.parametrize(
    "target",
    [
        "/sub/path/../../outside.txt",
        "/sub/path/../outside.txt",
        "/sub/path/%2e%2e/outside.txt",
        "/sub/path/parts/..%2f..%2foutside.txt",
        "/sub/path/..%5coutside.txt",
        "/sub/path//etc/passwd",
        "/sub/path/%00",
        "/sub/path/.git/config",
        "/sub/path/link.txt",
        "/sub/path/parts",
        "/sub/path/parts/",
        "/sub/path/app/abcdef012345/",
        "/sub/path/" + "x" * 5000,
        "/family.json",
        "/sub/pathfamily.json",
        "/sub/path/none",
    ],
)
def test_nothing_outside_and_no_listing_is_served(server: SiteServer, site: Path, target: str) -> None:
    (site / "link.txt").symlink_to(site.parent / "outside.txt")
    status, _, body = ask(server, target)
    assert status == 404
    assert b"secret" not in body


@settings(deadline=None, max_examples=100)
@given(
    steps=st.lists(
        st.sampled_from(["..", ".", "", "%2e%2e", "parts", "..%2f", "\\..", "%5c", "~", "c:", "%00", "a"])
    )
)
def test_no_path_leaves_the_folder(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "traversal" / "site"
    (root / "parts").mkdir(parents=True, exist_ok=True)
    for path in (root / "a", root / "parts" / "a", root.parent / "a"):
        path.write_bytes(b"")
    found = site_path(root, "/", "/" + "/".join(steps))
    assert found is None or root in found.parents


def test_other_methods_are_refused(server: SiteServer) -> None:
    assert ask(server, "/sub/path/family.json", "DELETE")[0] == 501
    assert ask(server, "/sub/path/family.json")[0] == 200


def test_target_that_is_no_url_gets_an_answer(server: SiteServer) -> None:
    with socket.create_connection(("127.0.0.1", int(server.server_address[1])), timeout=60) as visitor:
        visitor.sendall(b"GET http://[/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert visitor.makefile("rb").readline() == b"HTTP/1.1 400 Bad Request\r\n"


def test_failure_of_ours_is_told_in_one_line(server: SiteServer, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError("ours\n\x1b[31m")
    except ZeroDivisionError:
        server.handle_error(None, None)
    assert capfd.readouterr().err == "serve: an answer failed: ZeroDivisionError: ours\\n\\x1b[31m\n"


def test_only_failures_are_logged(server: SiteServer, capfd: pytest.CaptureFixture[str]) -> None:
    ask(server, "/sub/path/family.json")
    ask(server, "/sub/path/none")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert '"GET /sub/path/none HTTP/1.1" 404' in lines[0]


# The hostile server: a fault that is not the fault that a test wants would prove nothing.


def test_hostile_server_is_a_good_one_without_rules(hosts: HostileServer) -> None:
    assert ask(hosts, "/" + PART, Range="bytes=0-3")[::2] == (206, BODY[:4])
    assert hosts.seen == [hostile.Seen("GET", PART, "bytes=0-3")]


def test_hostile_answers_are_what_they_say(hosts: HostileServer) -> None:
    hosts.on("parts/*", hostile.gzipped)
    _, headers, body = ask(hosts, "/" + PART)
    assert gzip.decompress(body) == BODY
    assert (headers["Content-Encoding"], headers["Content-Length"]) == ("gzip", str(len(body)))
    hosts.on("parts/*", hostile.html_page)
    assert ask(hosts, "/" + PART)[::2] == (200, hostile.HTML_PAGE)
    hosts.on("parts/*", hostile.lfs_pointer)
    assert ask(hosts, "/" + PART)[2].startswith(b"version https://git-lfs")
    hosts.on("parts/*", hostile.truncated)
    assert ask(hosts, "/" + PART)[::2] == (200, BODY[: len(BODY) // 2])
    hosts.on("parts/*", hostile.missing)
    assert ask(hosts, "/" + PART)[0] == 404
    hosts.on("parts/*", hostile.without_length)
    _, headers, body = ask(hosts, "/" + PART)
    assert (body, "Content-Length" in headers) == (BODY, False)
    hosts.on("parts/*", hostile.range_ignored)
    assert ask(hosts, "/" + PART, Range="bytes=0-1")[::2] == (200, BODY)
    hosts.on("parts/*", hostile.flipped)
    body = ask(hosts, "/" + PART)[2]
    assert sum(a != b for a, b in zip(body, BODY, strict=True)) == 1
    assert ask(hosts, "/sw.js")[2] == FILES["sw.js"]
    hosts.heal()
    assert ask(hosts, "/" + PART)[2] == BODY


def test_fault_may_strike_once(hosts: HostileServer) -> None:
    hosts.on("parts/*", hostile.broken, times=1)
    assert [ask(hosts, "/" + PART)[0] for _ in range(2)] == [500, 200]


@pytest.mark.parametrize("percent", [0, 10, 50, 99])
def test_cut_download_ends_early_with_the_true_length(hosts: HostileServer, percent: int) -> None:
    hosts.on("parts/*", hostile.cut_at(percent))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(hosts, "/" + PART)
    assert caught.value.partial == BODY[: len(BODY) * percent // 100]
    assert caught.value.expected == len(BODY) - len(caught.value.partial)


def test_held_download_waits_for_the_test(hosts: HostileServer) -> None:
    held = hostile.Held()
    hosts.on("parts/*", held)
    connection = http.client.HTTPConnection("127.0.0.1", hosts.server_address[1], timeout=60)
    connection.request("GET", "/" + PART)
    response = connection.getresponse()
    assert held.reached.wait(timeout=60)
    first = response.read(len(BODY) // 2)
    held.go_on.set()
    assert first + response.read() == BODY
    connection.close()
