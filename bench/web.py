"""What a visitor waits for in Chromium, next to needle-rs (native) on the same file.

    python -m bench.web [--full-size DIR] [--rounds 5] [--json]

Owns: the browser's rows: page on the wire, first visit, rebuild, prefill and decode. The demo family, or with
--full-size the one of bench.full_size_family, is packed and served from this machine, so the network costs
nothing. Rebuild is the worker's own work: patch, SHA-256, opening; its bytes are at hand. Figures are the
best of the rounds; needle-rs runs on one thread. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from bench.engine import DEMO, PEER, TOOLS, needle_rs, needle_rs_speed, query_of
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

CONFIG = Path(__file__).parents[1] / "playwright.config.py"
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
FIRST_QUESTION = "what is a saguaro?"
# Hot sampling: an answer that goes on, whatever the model was trained for.
SAMPLING = {"temperature": 5, "top_p": 1, "top_k": 0, "seed": 7}

# Drives one worker by hand: rebuild a member from bytes at hand, then let it answer.
DRIVE_WORKER = """async ([app, id, prompt, newTokens, sampling]) => {
  const at = (path) => new URL(`${app}/${path}`, document.baseURI);
  const { Channel } = await import(at('family/channel.js'));
  const manifest = await (await fetch('family.json')).json();
  const spec = [manifest.base, manifest.router, ...manifest.specialists].find((member) => member?.id === id);
  const fetched = async ({ path }) => new Uint8Array(await (await fetch(path)).arrayBuffer());
  const whole = async ({ parts }) => (await Promise.all(parts.map(fetched)));
  const engine = await WebAssembly.compile(await fetched(manifest.engine));
  const isPatch = spec.delivery.kind === 'patch';
  const streams = isPatch ? { patch: await whole(spec.delivery), base: await whole(manifest.base.delivery) }
    : { file: await whole(spec.delivery) };
  const channel = new Channel(new Worker(at('worker/worker.js'), { type: 'module' }), 60000);
  await channel.request('hello', { protocol: 1, abi: manifest.engine.abi, engine });
  const start = performance.now();
  const identity = ({ bytes, sha256 }) => ({ bytes, sha256 });
  const base = isPatch ? identity(manifest.base) : null;
  let loading = await channel.request('open', { file: identity(spec), base, numerics: manifest.numerics });
  while (loading.wants) {
    const stream = loading.wants;
    const bytes = streams[stream].shift().buffer;
    loading = await channel.request('feed', { stream, bytes }, { transfer: [bytes] });
  }
  const rebuildMs = performance.now() - start;
  const request = { prompts: [prompt], maxNewTokens: newTokens, sampling, trace: false };
  const { promptTokens, prefillMs, tokenIds, decodeMs } = await channel.request('generate', request);
  channel.close(new Error('done'));
  const decode = { newTokens: tokenIds.length, decodeMs };
  return { rebuildMs, promptTokens, prefillMs, ...decode, memoryMb: loading.memoryBytes / 1e6 };
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
    member = manifest.specialists[0].id
    visits: list[dict[str, float]] = []
    rebuilt: list[dict[str, float]] = []
    spoken: list[dict[str, float]] = []
    native: list[tuple[float, float]] = []
    with serving(SiteServer(site)) as server, sync_playwright() as playwright:
        browser = runpy.run_path(str(CONFIG))["launch"](playwright)
        for _ in range(rounds):
            visits.append(first_visit(browser, server.url))
            page = browser.new_page()
            page.goto(server.url)
            work = [manifest.app.path, member, prompt, new_tokens, SAMPLING]
            rebuilt.append(page.evaluate(DRIVE_WORKER, work))
            spoken.append(page.evaluate(DRIVE_WORKER, [manifest.app.path, "base", *work[2:]]))
            page.context.close()
            native.append(native_speed(base, query, int(spoken[-1]["promptTokens"]), new_tokens))
        version = browser.version
        browser.close()
    return {
        "family": manifest.name,
        "chromium": version,
        "numerics": manifest.numerics,
        **weigh(site),
        "model_bytes": manifest.base.bytes,
        "patch_bytes": manifest.specialists[0].delivery.bytes,
        "prompt_tokens": int(spoken[0]["promptTokens"]),
        **{name: round(min(visit[name] for visit in visits)) for name in visits[0]},
        "rebuild_patch_ms": round(min(run["rebuildMs"] for run in rebuilt)),
        "open_whole_ms": round(min(run["rebuildMs"] for run in spoken)),
        "memory_mb": round(rebuilt[0]["memoryMb"], 1),
        "prefill_tps": {
            "chromium": round(max(run["promptTokens"] / run["prefillMs"] for run in spoken) * 1000),
            PEER: round(max(prefill for prefill, _ in native)),
        },
        "decode_tps": {
            "chromium": round(max(run["newTokens"] / run["decodeMs"] for run in spoken) * 1000),
            PEER: round(max(decode for _, decode in native)),
        },
    }


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


def native_speed(path: Path, query: str, prompt_tokens: int, new_tokens: int) -> tuple[float, float]:
    """needle-rs' tokens per second of prefill and decode."""
    peer = needle_rs.V3Engine.load(str(path))

    def generate(count: int) -> list[int]:
        return list(peer.generate(query, TOOLS, max_new_tokens=count)["token_ids"])

    return needle_rs_speed(generate, prompt_tokens, new_tokens)


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
