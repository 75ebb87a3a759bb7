"""Workers that die, memory that stays flat, requests that are stopped, sites that move on meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.publish.serve import serving
from tests.publish.hostile_server import HostileServer
from tests.web.visits import Visit

pytestmark = pytest.mark.browser

HOME, BASE, MEDIA = ["turn on the bedroom light"], ["what is a saguaro?"], ["play Radiohead"]
SILENCE_MS = 3_600_000
"""What the page's clock passes over in no time."""
TRIES = 300
"""On a busy machine an answer may be complete before the abort, which crosses two threads, arrives."""
# Long enough for several blocks of prefill, short enough for the demo's context of 512 tokens.
LONG = ["tell me about " + "the desert and the saguaro and the water and the light " * 5]

# Keeps the page's living workers within reach, so that a test can count them, kill one without a word, and
# learn when the page waits for one that was killed.
REACH = """
globalThis.alive = new Set();
globalThis.silenceCount = 0;
globalThis.kill = (worker) => {
  Object.getPrototypeOf(Worker).prototype.terminate.call(worker);
  worker.isKilled = true;
};
globalThis.Worker = class extends Worker {
  constructor(...given) { super(...given); alive.add(this); }
  terminate() { alive.delete(this); super.terminate(); }
  postMessage(...given) { super.postMessage(...given); if (this.isKilled) silenceCount += 1; }
};
"""


def plain(answer: dict[str, Any]) -> tuple[str, list[int], str]:
    envelope = answer["envelope"]
    return envelope["member"], envelope["token_ids"], envelope["text"]


@pytest.fixture
def embedded(visit):
    """A family on a page whose workers are within reach and whose clock the test moves."""
    visitor = visit()
    visitor.context.add_init_script(REACH)
    visitor.context.clock.install()
    return visitor.embed({"silenceMs": SILENCE_MS})


def pass_silences(embedded, count: int) -> dict[str, Any]:
    """The answer that `answering` promises, after so many waits for killed workers were cut short."""
    for number in range(1, count + 1):
        while embedded.call("silenceCount") < number:
            embedded.page.wait_for_timeout(10)
        embedded.page.clock.fast_forward(SILENCE_MS + 1)
    return embedded.call("answering.then(({ envelope, route }) => ({ envelope, route }))")


def respond_killing(embedded, turns: list[str], kill_count: int) -> dict[str, Any]:
    """The answer, while the youngest worker is killed at its third token, `kill_count` times."""
    embedded.page.evaluate(
        """([turns, count]) => {
          let left = count;
          const onToken = ({ tokenCount }) => {
            if (tokenCount !== 3 || left === 0) return;
            kill([...alive].at(-1));
            left -= 1;
            silenceCount += 1;
          };
          globalThis.answering = family.respond(turns, { onToken });
        }""",
        [turns, kill_count],
    )
    return pass_silences(embedded, kill_count)


def test_a_worker_that_is_killed_in_the_middle_of_an_answer_is_replaced(embedded) -> None:
    expected = plain(embedded.respond(HOME))
    answer = respond_killing(embedded, HOME, 1)
    assert (plain(answer), answer["route"]["reason"]) == (expected, "none")
    embedded.call("[...alive].at(-1).mark = 'replacement'")
    assert plain(embedded.respond(HOME)) == expected
    assert embedded.call("[...alive].at(-1).mark") == "replacement", "later requests do not load it again"


def test_a_specialist_whose_worker_dies_twice_leaves_the_answer_to_the_base(embedded) -> None:
    expected = plain(embedded.respond(HOME))
    answer = respond_killing(embedded, HOME, 2)
    assert (answer["envelope"]["member"], answer["route"]["reason"]) == ("base", "worker_lost")
    assert plain(embedded.respond(HOME)) == expected


def test_workers_that_were_killed_while_idle_are_replaced(embedded) -> None:
    expected = plain(embedded.respond(HOME))
    embedded.call("alive.forEach(kill)")
    embedded.page.evaluate("(turns) => { globalThis.answering = family.respond(turns); }", HOME)
    assert plain(pass_silences(embedded, 2)) == expected


@pytest.fixture(scope="module")
def fresh_answers(browser, packed) -> list[tuple[str, list[int], str]]:
    """What a family says to LONG and HOME that was never stopped."""
    with serving(HostileServer(packed)) as server:
        context = browser.new_context()
        embedded = Visit(context, server).embed()
        answers = [plain(embedded.respond(turns)) for turns in (LONG, HOME)]
        context.close()
    return answers


@pytest.mark.parametrize("phase", ["download", "open", "route", "prefill", "token 1", "token 4"])
def test_a_request_stopped_anywhere_leaves_no_trace(visit, fresh_answers, phase) -> None:
    visitor = visit()
    embedded = visitor.embed()
    visitor.allow(r"parts/.*ERR_ABORTED")
    if phase.startswith("token") or phase == "prefill":
        stopped = (embedded.respond(LONG, abort_at=phase)["envelope"] for _ in range(TRIES))
        assert any(envelope["stop_reason"] == "aborted" for envelope in stopped)
    else:
        assert embedded.respond(LONG, abort_at=phase)["rejected"] == "aborted"
    assert [plain(embedded.respond(turns)) for turns in (LONG, HOME)] == fresh_answers


def test_prefill_stops_between_two_blocks(visit) -> None:
    """That it is the next boundary is proved with a fake model: tests/web/answering.test.js."""
    embedded = visit().embed()
    embedded.respond(LONG)
    long = [LONG[0] * 4]
    assert any(is_cut_short(embedded.respond(long, abort_at="answer")) for _ in range(TRIES))


def is_cut_short(answer: dict[str, Any]) -> bool:
    """Whether it was aborted with blocks of its prompt still to come."""
    done = [phase["doneTokens"] for phase in answer["phases"] if phase["phase"] == "prefill"]
    envelope = answer["envelope"]
    return envelope["stop_reason"] == "aborted" and done[-1] + 64 < envelope["prompt_tokens"]


def test_fifty_switches_keep_memory_flat_and_end_old_workers(visit) -> None:
    visitor = visit()
    visitor.context.add_init_script(REACH)
    embedded = visitor.embed({"memoryBudgetBytes": 24_000_000})
    rounds: list[list[Any]] = []
    for _ in range(17):
        rounds.append([])
        for turns, member in ((BASE, "base"), (HOME, "home"), (MEDIA, "media")):
            assert embedded.respond(turns)["envelope"]["member"] == member
            rounds[-1].append(embedded.call("[family.status().memory.usedBytes, alive.size]"))
    assert max(used for step in rounds for used, _ in step) <= 24_000_000
    assert rounds[1] == rounds[2] == rounds[16], "the last round takes what the second took"
    embedded.wait_for_workers(rounds[16][-1][1])


def test_a_model_that_grows_its_memory_in_the_middle_answers_the_same(visit, fresh_answers) -> None:
    embedded = visit().embed()
    before = embedded.respond(BASE)["envelope"]["peak_ram_mb"]
    long = embedded.respond(LONG)
    assert long["envelope"]["peak_ram_mb"] > before
    assert plain(long) == fresh_answers[0]


def test_a_huge_paste_is_refused_without_the_memory_that_encoding_it_takes(visit) -> None:
    embedded = visit().embed()
    embedded.respond(BASE)
    before = embedded.call("family.status().memory.usedBytes")
    answer = embedded.respond(["word " * 400_000])
    assert (answer["envelope"]["error_code"], answer["route"]["reason"]) == ("context_full", "context_full")
    assert embedded.call("family.status().memory.usedBytes") == before


def test_closing_a_family_ends_its_workers(visit) -> None:
    embedded = visit().embed()
    embedded.respond(HOME)
    assert len(embedded.page.workers) == 2
    embedded.call("family.close()")
    embedded.wait_for_workers(0)


def test_a_site_that_moved_on_says_so_and_a_reload_helps(visit, serve, site, pack_site) -> None:
    visitor = visit(serve(site))
    visitor.allow("status (of )?404")
    chat = visitor.open_chat()
    for part in (site / "parts").iterdir():
        part.unlink()
    pack_site(site, "A second house", keep_previous=False)
    for part in (site / "parts").iterdir():
        part.unlink()
    assert "The site was updated while this page was open. Reload the page." in chat.ask("hello").replace(
        "\n", " "
    )
    pack_site(site, "A second house", keep_previous=False)
    chat.reload()
    assert chat.page.inner_text("#title") == "A second house"
    assert "help you" in chat.ask("hello")


def test_an_old_tab_goes_on_with_its_release_after_a_new_one_is_published(
    visit, serve, site, pack_site
) -> None:
    visitor = visit(serve(site))
    old = visitor.open_chat()
    answer = old.ask("turn on the bedroom light")
    pack_site(site, "A second house", keep_previous=False)
    new = visitor.open_chat()
    assert (old.page.inner_text("#title"), new.page.inner_text("#title")) == (
        "A small house",
        "A second house",
    )
    assert new.ask("turn on the bedroom light") == answer
    assert old.ask("turn on the bedroom light") == answer


def test_a_service_worker_never_mixes_releases(visit, serve, site, pack_site) -> None:
    server = serve(site)
    visitor = visit(server)
    chat = visitor.open_chat()
    chat.page.evaluate("navigator.serviceWorker.ready.then(() => undefined)")
    first = json.loads((site / "family.json").read_bytes())["release"]
    pack_site(site, "A second house", keep_previous=False)
    second = json.loads((site / "family.json").read_bytes())["release"]
    chat.reload()
    assert chat.page.get_attribute("html", "data-release") == second, "a new release reaches people at once"
    names = chat.page.evaluate(CACHES_WHEN, second)
    assert all(first not in name for name in names if name.startswith("saguaro-page")), names
    visitor.context.set_offline(True)
    visitor.allow("ERR_INTERNET_DISCONNECTED")
    chat.reload()
    assert chat.page.get_attribute("html", "data-release") == second
    assert chat.page.inner_text("#title") == "A second house"


# Resolves with the cache names once the page's release has its cache and is the only one.
CACHES_WHEN = """async (release) => {
  for (;;) {
    const names = (await caches.keys()).filter((name) => name.startsWith('saguaro-page'));
    if (names.length === 1 && names[0].endsWith(release) && navigator.serviceWorker.controller) return names;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}"""


def test_a_half_published_release_is_not_kept(visit, serve, site, pack_site) -> None:
    visitor = visit(serve(site))
    worker = (site / "sw.js").read_text()
    pack_site(site, "A second house", keep_previous=True)
    (site / "sw.js").write_text(
        worker
    )  # index.html is of the second release, the service worker of the first.
    visitor.allow("is another release", "serviceWorker", "ServiceWorker")
    chat = visitor.open_chat()
    chat.ask("hello")
    kept = "(async () => { for (const n of await caches.keys()) if (n.startsWith('saguaro-page'))"
    kept += " if (await (await caches.open(n)).match('index.html')) return n; return null; })()"
    assert chat.page.evaluate(kept) is None
