"""Earlier releases of a family, by folder or by address: what an upgrade starts from.

Owns: telling the two apart, and reading over http(s): the manifest bounds the sizes, hashes prove what came.
Knows nothing of: patches. Source: docs/publish.md, "Returning visitors".
"""

from __future__ import annotations

import contextlib
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

from builder.errors import ManifestError, UsageError, plain_text, refusal
from builder.files import LFS_POINTER, reason_of
from builder.publish.folder import MANIFEST
from builder.publish.manifest import MANIFEST_BYTES_MAX, Manifest, read_manifest
from builder.publish.site import Release, open_site

SILENCE_SECONDS = 30.0
"""A host that sends no byte for this long is given up."""
FILE_SECONDS = 600.0
"""So is one that has not sent a whole file, of 25 MiB at most, by then."""
PIECE_BYTES = 64 * 1024
REDIRECTS = (301, 302, 303, 307, 308)
REDIRECTS_MAX = 5
NEXT_STEP = "name a release that is whole, or leave --previous out"
SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def open_previous(where: str) -> Release:
    """The release in a site's folder or at its address, its manifest read and proved.

    Raises UsageError for what is neither, ManifestError if there is no sound manifest.
    """
    is_address = SCHEME.match(where)
    if not is_address and (not where or not (Path(where) / MANIFEST).exists()):
        raise _no_release(_strange_place(where))
    with naming_the_next_step():
        return open_address(where) if is_address else open_site(where)


@contextlib.contextmanager
def naming_the_next_step() -> Iterator[None]:
    """Refusals of an earlier release end with what to do about it."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(f"{error}; {NEXT_STEP}", code=error.code) from None


def earlier_bases(places: Iterable[str]) -> dict[str, bytes]:
    """The bases of these releases by SHA-256, to be read before a pack that may replace them.

    Raises as `open_previous`, and ManifestError for a base that is damaged.
    """
    bases = {}
    for where in places:
        release = open_previous(where)
        base = release.manifest.base
        if base.sha256 not in bases:
            with naming_the_next_step():
                bases[base.sha256] = release.member_bytes(base.id)
    return bases


def open_address(address: str) -> Release:
    """The release whose `family.json` lies at this http(s) address, with or without that name."""
    root = _root_of(address)
    name = root + MANIFEST
    return RemoteSite(root, read_manifest(fetch(name, MANIFEST_BYTES_MAX), name))


class RemoteSite(Release):
    """The release at an address that ends in a slash; each call asks the host again."""

    def __init__(self, root: str, manifest: Manifest) -> None:
        self._root = root
        self.manifest = manifest

    def _name(self, path: str) -> str:
        return self._root + path

    def _read(self, path: str, byte_count: int) -> bytes:
        data = fetch(self._name(path), byte_count)
        if data.startswith(LFS_POINTER):
            sentence = f"{self._name(path)}: is a Git LFS pointer; the host does not serve LFS files"
            raise ManifestError(sentence, code="part_is_lfs_pointer")
        return data


def fetch(address: str, bytes_max: int, *, clock: Callable[[], float] = time.monotonic) -> bytes:
    """What a host has there, at most this long; `clock` counts seconds.

    Raises ManifestError: part_missing, server_error, network, part_too_long.
    """
    end = clock() + FILE_SECONDS
    try:
        with _open(address) as response:
            data = _read(response, bytes_max, lambda: clock() > end)
    except urllib.error.HTTPError as error:
        error.close()
        code = "server_error" if error.code >= 500 else "part_missing"
        sentence = refusal(address, "status", found=error.code, allowed="200")
        raise ManifestError(sentence, code=code) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ManifestError(f"{address}: cannot be read: {_reason(error)}", code="network") from None
    if len(data) > bytes_max:
        sentence = refusal(address, "size", found="larger", allowed=f"at most {bytes_max} bytes")
        raise ManifestError(sentence, code="part_too_long")
    return data


def _reason(error: Exception) -> str:
    """What lies behind an error of urllib, in its own words."""
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, OSError) and reason.strerror:
        return plain_text(reason_of(reason))
    return plain_text(str(reason))


def redirected(address: str, location: str) -> str:
    """Where a redirect leads. Raises ManifestError (part_missing) for another host or http after https."""
    target = urllib.parse.urljoin(address, location)
    old, new = urllib.parse.urlsplit(address), urllib.parse.urlsplit(target)
    if new.hostname == old.hostname and new.scheme in (old.scheme, "https"):
        return target
    allowed = (
        "to the same host, and not from https to http; if that is where the site is now, name its address"
    )
    sentence = refusal(address, "redirect", found=f"to {plain_text(target)}", allowed=allowed)
    raise ManifestError(sentence, code="part_missing")


def _read(response: http.client.HTTPResponse, bytes_max: int, is_late: Callable[[], bool]) -> bytes:
    """All of it, or one byte too many; piece by piece as they arrive, so that the time is looked at."""
    data, announced = bytearray(), response.length
    while len(data) <= bytes_max and len(data) != announced:
        if is_late():
            raise TimeoutError(f"it takes longer than {FILE_SECONDS:g} seconds")
        piece = response.read1(min(PIECE_BYTES, bytes_max + 1 - len(data)))
        if not piece:
            break
        data += piece
    if announced is not None and len(data) < min(announced, bytes_max + 1):
        raise http.client.IncompleteRead(bytes(data), announced - len(data))
    return bytes(data)


def _open(address: str) -> http.client.HTTPResponse:
    """The answer to a request, after redirects."""
    start = address
    for _ in range(REDIRECTS_MAX + 1):
        try:
            return _request(address)
        except urllib.error.HTTPError as error:
            location = error.headers.get("Location")
            if error.code not in REDIRECTS or location is None:
                raise
            error.close()
            address = redirected(address, location)
    sentence = refusal(
        start, "redirects", found=f"more than {REDIRECTS_MAX}", allowed=f"at most {REDIRECTS_MAX}"
    )
    raise ManifestError(sentence, code="part_missing")


def _request(address: str) -> http.client.HTTPResponse:
    """As urllib does it, but for http and https alone, and without redirects."""
    request = urllib.request.Request(address, headers={"Accept-Encoding": "identity"})
    opener = urllib.request.OpenerDirector()
    handlers: list[Callable[[], urllib.request.BaseHandler]] = [
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ]
    for handler in handlers:
        opener.add_handler(handler())
    return cast(http.client.HTTPResponse, opener.open(request, timeout=SILENCE_SECONDS))


def _root_of(address: str) -> str:
    """The folder that `family.json` lies in. Raises UsageError for what is no plain http(s) address."""
    try:
        parts = urllib.parse.urlsplit(address)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_plain = False
    if not is_plain or parts.query or parts.fragment or "@" in parts.netloc or not _is_printable(address):
        raise _no_release(address)
    path = parts.path.removesuffix(MANIFEST).rstrip("/") + "/"
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _strange_place(where: str) -> str:
    """What is there instead of a site."""
    if not where:
        return "empty"
    if not Path(where).exists():
        return f"{where}, which is not there"
    return f"{where}, where {MANIFEST} is missing" if Path(where).is_dir() else f"{where}, which is no folder"


def _no_release(found: str) -> UsageError:
    allowed = f"a site's folder with its {MANIFEST}, or its address, such as https://example.org/models/"
    return UsageError(f"--previous: is {plain_text(found)}, must be {allowed}")


def _is_printable(address: str) -> bool:
    return address.isascii() and address.isprintable() and " " not in address
