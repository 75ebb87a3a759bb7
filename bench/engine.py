"""Prefill and decode speed of the engine in wasmtime, node and Chromium, next to its peers on the same file.

    python -m bench.engine [MODEL.cact] [--prompt-words 180] [--new-tokens 24] [--rounds 7]
                           [--hosts] [--onnx] [--json]

Without MODEL the demo base is exported first. Peers: needle-rs (native, one thread); with --hosts and a
generation-2 file of the published geometry also the official WebAssembly engine, if SAGUARO_OFFICIAL_WASM is
the path of its needle.wasm (needle2-runtime.js beside it); with --onnx the exported model in ONNX Runtime,
native and in Chromium (npm installs it into bench/node_modules). All take turns; times are processor time,
which others hardly disturb; the least of the rounds counts. needle-rs tells no times: its prefill is an
answer of one token, its decode what the longer answer takes more. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # read when needle-rs starts its pool

import needle_rs

from bench.engine_peers import OFFICIAL_WORDS, Runner, host_runners, prefill_and_whole
from builder.cact.reader import read_container
from builder.family.export import export_family
from builder.family.family import load_family
from builder.runtime.engine import NUMERICS, Engine, EngineModel

DEMO = Path(__file__).parents[1] / "examples" / "demo" / "family.toml"
PEER = "needle-rs"
TOOLS = '[{"name":"set_light","parameters":{"room":{"type":"string"},"on":{"type":"boolean"}}}]'
QUERY = "turn on the light in the bedroom and tell me about the weather of tomorrow please "


def query_of(word_count: int) -> str:
    return " ".join((QUERY * word_count).split()[:word_count])


def engine_seconds(model: EngineModel, ids: list[int], new_tokens: int) -> tuple[float, float]:
    """CPU seconds of prefill, and of prefill and decode."""
    session = model.session(len(ids) + new_tokens)
    started = time.process_time()
    session.append(ids)
    prefilled = time.process_time()
    for _ in range(new_tokens):
        session.append([int(session.logits().argmax())])
    return prefilled - started, time.process_time() - started


def needle_rs_seconds(generate: Callable[[int], list[int]], new_tokens: int) -> tuple[float, float]:
    """CPU seconds of an answer of one token, and of a longer one. It must not end by itself."""
    started = time.process_time()
    generate(1)
    one = time.process_time() - started
    started = time.process_time()
    made = len(generate(new_tokens + 1))
    if made != new_tokens + 1:
        sys.exit(f"needle-rs ended its answer after {made} tokens; give another model or fewer --new-tokens")
    return one, time.process_time() - started


def measure(
    path: Path, query: str, new_tokens: int, rounds: int, *, hosts: bool = False, onnx: bool = False
) -> dict[str, Any]:
    """Speeds by name of the runner, and what belongs to them."""
    data = path.read_bytes()
    engine = Engine()
    started = time.process_time()
    models = {name: engine.open(data, name=path.name, numerics=name) for name in NUMERICS}
    opened = (time.process_time() - started) / len(models)
    model = models[NUMERICS[0]]
    prompt = f"<|im_start|>user\n<tools>{TOOLS}</tools>\n{query}<|im_end|>\n<|im_start|>assistant\n"
    ids = [model.info.bos_id, *model.encode(prompt)]
    generation = read_container(data).header.generation
    peer = (needle_rs.V2Engine if generation == 2 else needle_rs.V3Engine).load(str(path))

    def generate(count: int) -> list[int]:
        return list(peer.generate(query, TOOLS, max_new_tokens=count)["token_ids"])

    rates = partial(prefill_and_whole, len(ids), new_tokens)
    runners = {
        name: Runner(partial(engine_seconds, models[name], ids, new_tokens), rates) for name in NUMERICS
    }
    runners[PEER] = Runner(partial(needle_rs_seconds, generate, new_tokens), rates)
    with ExitStack() as stack:
        if hosts or onnx:
            per_repeat = len(model.encode(OFFICIAL_WORDS * 2)) - len(model.encode(OFFICIAL_WORDS))
            runners |= stack.enter_context(host_runners(path, ids, new_tokens, per_repeat, onnx=onnx))
        parts: dict[str, list[Sequence[float]]] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, runner in runners.items():
                parts[name].append(runner.seconds())
    speeds = {
        name: runner.rates([min(part) for part in zip(*parts[name], strict=True)])
        for name, runner in runners.items()
    }
    wasm = resources.files("builder.runtime").joinpath("engine.wasm").read_bytes()
    return {
        "model": path.name,
        "model_bytes": len(data),
        "prompt_tokens": len(ids),
        "new_tokens": new_tokens,
        "engine_wasm_bytes": len(wasm),
        "engine_wasm_gzip_bytes": len(gzip.compress(wasm, 9, mtime=0)),
        "open_ms": round(opened * 1000, 1),
        "memory_mb": round(model.memory_bytes / 1e6, 1),
        "prefill_tps": {name: round(prefill) for name, (prefill, _) in speeds.items()},
        "decode_tps": {name: round(decode) for name, (_, decode) in speeds.items()},
    }


def print_table(row: dict[str, Any]) -> None:
    print(f"{row['model']}: {row['model_bytes']} bytes, prompt of {row['prompt_tokens']} tokens")
    print(f"engine.wasm: {row['engine_wasm_bytes']} bytes, {row['engine_wasm_gzip_bytes']} gzipped")
    print(f"opened in {row['open_ms']} ms, {row['memory_mb']} MB with a session\n")
    print(f"{'':24}{'prefill tok/s':>16}{'decode tok/s':>16}")
    for name, prefill in row["prefill_tps"].items():
        print(f"{name:24}{prefill:>16}{row['decode_tps'][name]:>16}")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, nargs="?", help="a .cact file (default: the demo base)")
    parser.add_argument("--prompt-words", type=int, default=180)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hosts", action="store_true", help="node and Chromium too, and the official engine")
    parser.add_argument("--onnx", action="store_true", help="--hosts, and the exported model in ONNX Runtime")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model
        if path is None:
            export_family(load_family(DEMO), Path(folder))
            path = Path(folder) / "base.cact"
        query = query_of(arguments.prompt_words)
        which = {"hosts": arguments.hosts, "onnx": arguments.onnx}
        row = measure(path, query, arguments.new_tokens, arguments.rounds, **which)
    if not arguments.json:
        print_table(row)
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
