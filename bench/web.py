"""What a visitor waits for in Chromium, next to needle-rs (native) on the same file.

    python -m bench.web [--full-size DIR] [--rounds 5] [--json]

Owns: the browser's rows: page on the wire, first visit, rebuild, prefill and decode. The demo family, or with
--full-size the one of bench.full_size_family, is packed and served from this machine, so the network costs
nothing. Rebuild (patch, SHA-256, opening; bytes at hand), prefill and decode are CPU seconds of the worker's
thread as Linux counts them, and of this process for needle-rs on one thread, so others hardly disturb; each
worker answers once before it is measured. The first visit is wall time. The least round counts; prefill
is an answer of one token, decode what a longer one takes more. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from bench.chromium import launch
from bench.engine import DEMO, PEER, needle_rs, query_of
from bench.pack import weigh
from builder.cact.reader import read_container
from builder.cact.sentencepiece_model import read_sentencepiece
from builder.cact.tokenizer import pack_tokenizer
from builder.cact.writer import blobs_of, raw_blob, write_container
from builder.family.family import load_family
from builder.publish.pack import Options, pack
from builder.publish.pages import default_web_folder
from builder.publish.parts import PART_BYTES_DEFAULT
from builder.publish.serve import SiteServer, serving
from builder.publish.site import open_site

FULL_SIZE_TOML = """[family]
name = "full-size"
title = "Full size"
[base]
cact = "base.cact"
[[specialists]]
id = "specialist"
about = "a random adapter"
cact = "0.003.cact"
"""
TOOLS = '[{"name":"set_light","parameters":{"room":{"type":"string"},"on":{"type":"boolean"}}}]'
FIRST_QUESTION = "what is a saguaro?"
# Hot sampling: an answer that goes on, whatever the model was trained for.
SAMPLING = {"temperature": 5, "top_p": 1, "top_k": 0, "seed": 7}

# Rebuilds a member in a worker of its own from bytes at hand, and keeps the channel for ANSWER.
OPEN = """async ([app, id]) => {
  const at = (path) => new URL(`${app}/${path}`, document.baseURI);
  const { Channel } = await import(at('family/channel.js'));
  const manifest = await (await fetch('family.json')).json();
  const spec = [manifest.base, manifest.router, ...manifest.specialists].find((member) => member?.id === id);
  const fetched = async ({ path }) => new Uint8Array(await (await fetch(path)).arrayBuffer());
  const all = ({ parts }) => Promise.all(parts.map(fetched));
  const engine = await WebAssembly.compile(await fetched(manifest.engine));
  const isPatch = spec.delivery.kind === 'patch';
  const own = await all(spec.delivery);
  const streams = isPatch ? { patch: own, base: await all(manifest.base.delivery) } : { file: own };
  const identity = ({ bytes, sha256 }) => ({ bytes, sha256 });
  const opening = { file: identity(spec), base: isPatch ? identity(manifest.base) : null };
  globalThis.channel = new Channel(new Worker(at('worker/worker.js'), { type: 'module' }), 60000);
  await channel.request('hello', { protocol: 2, abi: manifest.engine.abi, engine });
  globalThis.rebuild = async () => {
    let loading = await channel.request('open', { ...opening, numerics: manifest.numerics });
    while (loading.wants) {
      const stream = loading.wants;
      const bytes = streams[stream].shift().buffer;
      loading = await channel.request('feed', { stream, bytes }, { transfer: [bytes] });
    }
    return loading.memoryBytes;
  };
}"""
ANSWER = """async ([prompt, maxNewTokens, sampling]) => {
  const request = { fixed: "", prompts: [prompt], maxNewTokens, sampling, trace: false };
  const { promptTokens, tokenIds } = await channel.request('generate', request);
  return [promptTokens, tokenIds.length];
}"""


def main() -> int:
    """Pack, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--full-size", type=Path, metavar="DIR", help="made there if absent; needs 3 GB of memory"
    )
    parser.add_argument("--prompt-words", type=int, default=180)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = pack_site(Path(folder), arguments.full_size)
        query = query_of(arguments.prompt_words)
        row = measure(site, Path(folder), query, arguments.new_tokens, arguments.rounds)
    if not arguments.json:
        print_table(row)
    print(json.dumps(row))
    return 0


def pack_site(folder: Path, full_size: Path | None) -> Path:
    """The demo's site, or that of a full-size family."""
    toml = DEMO
    if full_size is not None:
        from bench.full_size_family import write_family

        for path in write_family(full_size).values():
            give_tokenizer(path, folder / path.name)
        toml = folder / "family.toml"
        toml.write_text(FULL_SIZE_TOML, "utf-8")
    options = Options(PART_BYTES_DEFAULT, 2, folder / "cache", default_web_folder())
    pack(load_family(toml), folder / "site", options, lambda step, done, total: None)
    return folder / "site"


def give_tokenizer(path: Path, out: Path) -> None:
    """Upstream's exporter leaves it out of a model that was never trained; the demo's will do."""
    container = read_container(path)
    tokenizer = pack_tokenizer(read_sentencepiece(DEMO.with_name("tokenizer.model")))
    out.write_bytes(write_container(container.header, [*blobs_of(container), raw_blob(tokenizer)]))


def measure(site: Path, folder: Path, query: str, new_tokens: int, rounds: int) -> dict[str, Any]:
    """All figures of one site."""
    manifest = open_site(site).manifest
    base = folder / "base.cact"
    base.write_bytes(open_site(site).member_bytes("base"))
    prompt = f"<|im_start|>user\n<tools>{TOOLS}</tools>\n{query}<|im_end|>\n<|im_start|>assistant\n"
    rows: list[dict[str, dict[str, float]]] = []
    visits: list[dict[str, float]] = []
    with serving(SiteServer(site)) as server, sync_playwright() as playwright:
        browser = launch(playwright)
        for _ in range(rounds):
            patched = worker_costs(browser, server.url, manifest.app.path, manifest.specialists[0].id)
            whole = worker_costs(browser, server.url, manifest.app.path, "base", prompt, new_tokens)
            native = native_costs(base, query, int(whole["new_tokens"]))
            visits.append(first_visit(browser, server.url))
            rows.append({"patched": patched, "chromium": whole, PEER: native})
        version = browser.version
        browser.close()

    def least(runner: str, name: str) -> float:
        return min(row[runner][name] for row in rows)

    def tokens_per_second(runner: str, prompt_tokens: float) -> tuple[int, int]:
        prefill = least(runner, "prefill_s")
        decode = least(runner, "answer_s") - prefill
        return round(prompt_tokens / prefill), round(least(runner, "new_tokens") / decode)

    prompt_tokens = least("chromium", "prompt_tokens")
    speeds = {runner: tokens_per_second(runner, prompt_tokens) for runner in ("chromium", PEER)}
    return {
        "family": manifest.name,
        "chromium": version,
        "numerics": manifest.numerics,
        **weigh(site),
        "model_bytes": manifest.base.bytes,
        "patch_bytes": manifest.specialists[0].delivery.bytes,
        **{name: round(min(visit[name] for visit in visits)) for name in visits[0]},
        "rebuild_patch_ms": round(least("patched", "open_s") * 1000),
        "open_whole_ms": round(least("chromium", "open_s") * 1000),
        "memory_mb": round(least("chromium", "memory_mb"), 1),
        "prompt_tokens": round(prompt_tokens),
        "prefill_tps": {runner: speed[0] for runner, speed in speeds.items()},
        "decode_tps": {runner: speed[1] for runner, speed in speeds.items()},
    }


def worker_costs(
    browser: Browser, url: str, app: str, member: str, prompt: str = "", new_tokens: int = 0
) -> dict[str, float]:
    """CPU seconds of opening a member and, with a prompt, of answering it."""
    page = browser.new_page()
    page.goto(url)
    page.evaluate(OPEN, [app, member])
    costs: dict[str, float] = {}
    start = worker_cpu_seconds()
    costs["memory_mb"] = page.evaluate("rebuild()") / 1e6
    costs["open_s"] = worker_cpu_seconds() - start
    if prompt:
        page.evaluate(ANSWER, [prompt, new_tokens, SAMPLING])
        for name, count in (("prefill_s", 1), ("answer_s", new_tokens + 1)):
            start = worker_cpu_seconds()
            costs["prompt_tokens"], made = page.evaluate(ANSWER, [prompt, count, SAMPLING])
            costs[name] = worker_cpu_seconds() - start
        costs["new_tokens"] = made - 1
    page.context.close()
    return costs


def worker_cpu_seconds() -> float:
    """CPU time of all worker threads of this process's browsers, so far."""
    parents = {int(path.parent.name): _parent(path) for path in Path("/proc").glob("[0-9]*/stat")}
    total = 0
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor != os.getpid():
            continue
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            if "DedicatedWorker" in (thread / "comm").read_text():
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
        return 0


def first_visit(browser: Browser, url: str) -> dict[str, float]:
    """Milliseconds from an empty browser profile to the page, the first words and the whole answer."""
    context = browser.new_context()
    page = context.new_page()
    start = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("#message:not([disabled])")
    ready = time.perf_counter()
    page.fill("#message", FIRST_QUESTION)
    page.press("#message", "Enter")
    first = seconds_until(page, ".answer .body > *", start)
    whole = seconds_until(page, ".answer:not([aria-busy])", start)
    context.close()
    return {
        "page_ms": (ready - start) * 1000,
        "first_words_ms": first * 1000,
        "first_answer_ms": whole * 1000,
    }


def seconds_until(page: Page, selector: str, start: float) -> float:
    page.wait_for_selector(selector)
    return time.perf_counter() - start


def native_costs(path: Path, query: str, new_tokens: int) -> dict[str, float]:
    """CPU seconds of needle-rs; its longer answer is as long as its model wants."""
    peer = needle_rs.V3Engine.load(str(path))
    costs: dict[str, float] = {}
    for name, count in (("prefill_s", 1), ("answer_s", new_tokens + 1)):
        start = time.process_time()
        made = len(peer.generate(query, TOOLS, max_new_tokens=count)["token_ids"])
        costs[name] = time.process_time() - start
    return costs | {"new_tokens": made - 1}


def print_table(row: dict[str, Any]) -> None:
    """For people."""
    for name, value in row.items():
        if not isinstance(value, dict):
            print(f"{name:24} {value:>12,}" if isinstance(value, int) else f"{name:24} {value!s:>12}")
    print(f"\n{'':24}{'prefill tok/s':>16}{'decode tok/s':>16}")
    for name, prefill in row["prefill_tps"].items():
        print(f"{name:24}{prefill:>16}{row['decode_tps'][name]:>16}")
    print()


if __name__ == "__main__":
    sys.exit(main())
