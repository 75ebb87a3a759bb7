"""What hosts, networks and packers do wrong: the right answer from the base or a clear sentence, and the
next try works."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from builder.delta import make_patch
from builder.publish.manifest import part_path, write_manifest
from builder.publish.serve import serving
from builder.publish.site import open_site
from tests.publish import hostile_server as faults
from tests.web.conftest import INSECURE_HOST
from tests.web.visits import DENIED_STORAGE, Visit

pytestmark = pytest.mark.browser

QUESTION = ["turn on the bedroom light"]
FAILED_LOADS = ("ERR_CONTENT_LENGTH_MISMATCH", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE")


def parts_of(server, member: str) -> list[str]:
    manifest = json.loads((server.root / "family.json").read_bytes())
    members = [manifest["base"], manifest["router"], *manifest["specialists"]]
    return [part["path"] for m in members if m["id"] == member for part in m["delivery"]["parts"]]


def fetched(server, member: str) -> list[str]:
    wanted = parts_of(server, member)
    return [seen.path for seen in server.seen if seen.path in wanted]


def right_answer(answer: dict[str, Any]) -> bool:
    call = {"name": "set_light", "arguments": {"room": "bedroom", "state": "on"}}
    return answer["envelope"]["member"] == "home" and answer["envelope"]["function_calls"] == [call]


@pytest.fixture(scope="module")
def base_answer(browser, packed) -> dict[str, Any]:
    """What the base says to QUESTION when it is alone."""
    with serving(faults.HostileServer(packed)) as server:
        server.on(parts_of(server, "home")[0], faults.missing)
        context = browser.new_context()
        answer = Visit(context, server).embed().respond(QUESTION)
        context.close()
    assert answer["route"]["reason"] == "member_unavailable"
    return comparable(answer)


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """The envelope without what a clock or the memory says."""
    measured = ("prefill_tps", "decode_tps", "peak_ram_mb")
    return {key: value for key, value in answer["envelope"].items() if key not in measured}


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        (faults.flipped, 1),
        (faults.truncated, 1),
        (faults.broken, 2),
        (faults.cut_at(50), 2),
        (faults.gzipped, None),
        (faults.without_length, None),
        (faults.range_ignored, None),
    ],
    ids=["flipped", "truncated", "500", "cut", "gzipped", "without-length", "range-ignored"],
)
def test_what_passes_or_does_not_matter_is_never_seen(visit, server, fault, times) -> None:
    visitor = visit()
    visitor.allow("status (of )?500", *FAILED_LOADS)
    for member in ("base", "home"):
        server.on(parts_of(server, member)[0], fault, times)
    answer = visitor.embed().respond(QUESTION)
    assert right_answer(answer)
    for phase in answer["phases"]:
        assert phase["phase"] != "download" or phase["haveBytes"] <= phase["totalBytes"]


def test_a_server_that_gzips_everything_changes_nothing(visit, server) -> None:
    server.on("*", faults.gzipped)
    chat = visit().open_chat()
    chat.ask(QUESTION[0])
    assert chat.note().startswith("Home answered")
    bar = chat.page.evaluate("(({ value, max }) => value <= max)(document.querySelector('#download-bar'))")
    assert bar


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (faults.flipped, "part_hash_mismatch"),
        (faults.html_page, "part_is_html"),
        (faults.lfs_pointer, "part_is_lfs_pointer"),
        (faults.missing, "part_missing"),
        (faults.truncated, "part_too_short"),
        (faults.broken, "server_error"),
        (faults.cut_at(99), "network"),
    ],
    ids=["flipped", "html", "lfs", "404", "truncated", "500", "cut"],
)
def test_a_patch_that_stays_bad_leaves_the_answer_to_the_exact_base(
    visit, server, base_answer, fault, code
) -> None:
    visitor = visit()
    visitor.allow("status (of )?(404|500)", *FAILED_LOADS)
    embedded = visitor.embed()
    server.on(parts_of(server, "home")[0], fault)
    answer = embedded.respond(QUESTION)
    assert comparable(answer) == base_answer
    assert (answer["route"]["reason"], answer["cause"]) == ("member_unavailable", code)
    server.heal()
    assert right_answer(embedded.respond(QUESTION))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.flipped, "A download arrived damaged. Try again"),
        (faults.html_page, "The host sent a web page instead of a piece of the model. Try again later"),
        (faults.broken, "The host has trouble. Try again in a moment."),
    ],
    ids=["flipped", "html", "500"],
)
def test_a_base_that_stays_bad_is_a_sentence_with_a_next_step(visit, server, fault, words) -> None:
    visitor = visit()
    visitor.allow("status (of )?500")
    chat = visitor.open_chat()
    server.on(parts_of(server, "base")[2], fault)
    assert words in chat.ask("hello").replace("\n", " ")
    good = len(set(fetched(server, "base"))) - 1
    server.heal()
    server.seen.clear()
    chat.page.click(".trouble button")
    assert "help you" in chat.answer()
    again = fetched(server, "base")
    assert len(again) == len(parts_of(server, "base")) - good, "only what was bad or missing travelled again"


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_a_page_that_was_closed_in_the_middle_resumes(visit, server, percent) -> None:
    visitor = visit()
    visitor.allow("ERR_ABORTED")
    base = parts_of(server, "base")
    here = len(base) * percent // 100
    held = faults.Held()
    server.on(base[here], held, times=1)
    chat = visitor.open_chat()
    chat.send(QUESTION[0])
    assert held.reached.wait(60)
    held_page, chat = chat.page, visitor.open_chat()
    held_page.close()
    held.go_on.set()
    before = len(server.seen)
    assert chat.ask(QUESTION[0]).startswith("Set light")
    travelled = [seen.path for seen in server.seen[before:] if seen.path in base]
    assert set(base[:here]).isdisjoint(travelled), "what was here did not travel again"


@pytest.mark.parametrize("percent", [10, 50, 99])
def test_a_patch_that_was_cut_resumes(visit, server, percent) -> None:
    visitor = visit()
    visitor.allow(*FAILED_LOADS)
    embedded = visitor.embed()
    last = parts_of(server, "home")[-1]
    server.on(last, faults.cut_at(percent))
    assert embedded.respond(QUESTION)["cause"] == "network"
    server.heal()
    server.seen.clear()
    assert right_answer(embedded.respond(QUESTION))
    assert fetched(server, "home") == [last]


def test_a_damaged_manifest_is_asked_for_again(visit, server) -> None:
    server.on("family.json", faults.flipped, times=1)
    assert visit().open_chat().ask("hello") != ""


def test_a_manifest_that_stays_damaged_is_a_sentence_and_the_next_try_works(visit, server) -> None:
    server.on("family.json", faults.flipped)
    page = visit().context.new_page()
    page.goto(server.url)
    page.wait_for_selector("[data-topic=opening]:has-text('The list of models arrived damaged. Try again.')")
    server.heal()
    page.click("[data-topic=opening] button")
    page.wait_for_selector("#message:not([disabled])")


def test_a_damaged_manifest_on_a_later_visit_gives_way_to_the_last_good_one(visit, server) -> None:
    chat = visit().open_chat()
    answer = chat.ask(QUESTION[0])
    server.on("family.json", faults.flipped)
    chat.reload()
    assert "uses the list of models from your last visit" in chat.page.inner_text("[data-topic=manifest]")
    assert chat.ask(QUESTION[0]) == answer


def replace_member(site: Path, member_id: str, kind: str, data: bytes, whole: bytes) -> None:
    """Let the manifest, sealed anew, deliver other bytes for a specialist."""
    manifest = json.loads((site / "family.json").read_bytes())
    member = next(m for m in manifest["specialists"] if m["id"] == member_id)
    sha256 = hashlib.sha256(data).hexdigest()
    (site / part_path(sha256)).write_bytes(data)
    part = {"path": part_path(sha256), "bytes": len(data), "sha256": sha256}
    member |= {"bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    member["delivery"] = {"kind": kind, "bytes": len(data), "parts": [part]}
    if kind == "patch":
        member["delivery"]["sha256"] = sha256
    del manifest["release"]
    (site / "family.json").write_bytes(write_manifest(manifest))


def test_a_patch_for_another_base_is_refused(visit, serve, site, base_answer) -> None:
    members = open_site(site)
    home, media = members.member_bytes("home"), members.member_bytes("media")
    replace_member(site, "home", "patch", make_patch(media, home), home)
    answer = visit(serve(site)).embed().respond(QUESTION)
    assert comparable(answer) == base_answer
    assert answer["cause"] == "patch_wrong_base"


def test_a_patch_for_another_target_is_refused(visit, serve, site, base_answer) -> None:
    members = open_site(site)
    base, home, media = (members.member_bytes(member) for member in ("base", "home", "media"))
    replace_member(site, "home", "patch", make_patch(base, media), home)
    answer = visit(serve(site)).embed().respond(QUESTION)
    assert comparable(answer) == base_answer
    assert answer["cause"] == "patch_wrong_target"


def test_a_specialist_whose_tokenizer_is_broken_is_refused(visit, serve, site, base_answer) -> None:
    home = bytearray(open_site(site).member_bytes("home"))
    tokenizer = home.rindex(b"<0x00>")
    home[tokenizer - 2 : tokenizer] = b"\xff\xff"  # A piece that is longer than the file.
    replace_member(site, "home", "whole", bytes(home), bytes(home))
    answer = visit(serve(site)).embed().respond(QUESTION)
    assert comparable(answer) == base_answer
    assert re.match("cact_", answer["cause"])


def test_storage_that_is_denied_is_replaced_by_memory(visit) -> None:
    visitor = visit()
    visitor.context.add_init_script(DENIED_STORAGE)
    chat = visitor.open_chat()
    assert "lets the page store nothing" in chat.page.inner_text("[data-topic=storage]")
    chat.ask(QUESTION[0])
    assert chat.note().startswith("Home answered")
    chat.wait_for_words("#device-sum", "in this tab’s memory")
    chat.page.click("#download-all")
    chat.wait_for_state("media", "stored")


def test_a_full_disk_is_said_and_does_not_stop_the_answer(visit, server) -> None:
    visitor = visit()
    chat = visitor.open_chat()
    origin = server.url.rstrip("/")
    session = visitor.context.new_cdp_session(chat.page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 900_000})
    chat.ask(QUESTION[0])
    assert chat.note().startswith("Home answered")
    assert "Storage is full" in chat.page.inner_text("[data-topic=storage]")


def test_an_entry_that_rotted_on_disk_is_fetched_again(visit, server) -> None:
    visitor = visit()
    embedded = visitor.embed()
    assert right_answer(embedded.respond(QUESTION))
    embedded.call(
        "(async () => { const [name] = (await caches.keys()).filter((n) => n.startsWith('saguaro-parts'));"
        " const cache = await caches.open(name);"
        " for (const request of await cache.keys()) {"
        "   const bytes = new Uint8Array(await (await cache.match(request)).arrayBuffer());"
        "   bytes[bytes.length >> 1] ^= 1; await cache.put(request, new Response(bytes)); } })()"
    )
    server.seen.clear()
    embedded = visitor.embed()
    assert right_answer(embedded.respond(QUESTION))
    assert len(set(fetched(server, "base"))) == len(parts_of(server, "base"))


def test_an_address_without_https_works_from_memory_and_says_so(visit, server) -> None:
    url = server.url.replace("127.0.0.1", INSECURE_HOST)
    chat = visit().open_chat(url)
    assert chat.page.evaluate("[isSecureContext, typeof crypto.subtle, typeof caches]") == [
        False,
        "undefined",
        "undefined",
    ]
    assert "not secure" in chat.page.inner_text("[data-topic=storage]")
    assert chat.ask(QUESTION[0]).startswith("Set light")
