"""Prefill and decode speed of the engine in wasmtime, node and Chromium, next to its peers on the same files.

    python -m bench.engine [MODEL.cact ...] [--full-size DIR] [--tokens 32 256 512 1024] [--new-tokens 24]
                           [--rounds 5] [--hosts] [--onnx] [--json]

Without MODEL the demo base is exported; --full-size adds a 45 M file of generation 2 and a 121 M file of
generation 3 with random weights (bench.full_size_models). For each file and each number of tokens: the
prefill of a prompt that long, and the decoding of what follows it. Peers: needle-rs (native, one thread);
with --hosts and a generation-2 file of the published geometry also the official WebAssembly engine, if
SAGUARO_OFFICIAL_WASM is the path of its needle.wasm (needle2-runtime.js beside it); with --onnx the exported
model in ONNX Runtime, native and in Chromium (npm installs it into bench/node_modules). All take turns; times
are processor time, which others hardly disturb; the least of the rounds counts. needle-rs tells no times: its
prefill is an answer of one token, its decode what the longer answer takes more. The last line is one JSON
document.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # read when needle-rs starts its pool

import needle_rs

from bench.engine_limits import Limits, measure_limits, read_per_token
from bench.engine_peers import OFFICIAL_WORDS, Runner, host_runners, prefill_and_whole
from builder.cact.reader import read_container
from builder.family.export import export_family
from builder.family.family import load_family
from builder.runtime.engine import NUMERICS, Engine, EngineModel

DEMO = Path(__file__).parents[1] / "examples" / "demo" / "family.toml"
MODULES = ("engine", "engine_relaxed")
PEER = "needle-rs"
NO_TOOLS = "[]"
QUERY = "turn on the light in the bedroom and tell me about the weather of tomorrow please "
WORDS_MAX = 4096


def query_of(word_count: int) -> str:
    return " ".join((QUERY * (word_count // 16 + 1)).split()[:word_count])


def prompt_of(model: EngineModel, query: str) -> list[int]:
    """The ids that needle-rs makes of a query without tools."""
    text = f"<|im_start|>user\n<tools>{NO_TOOLS}</tools>\n{query}<|im_end|>\n<|im_start|>assistant\n"
    return [model.info.bos_id, *model.encode(text)]


def query_for(model: EngineModel, token_count: int) -> str:
    """The shortest query whose prompt has at least this many tokens."""
    low, high = 1, WORDS_MAX
    while low < high:
        middle = (low + high) // 2
        enough = len(prompt_of(model, query_of(middle))) >= token_count
        low, high = (low, middle) if enough else (middle + 1, high)
    return query_of(low)


def engine_seconds(model: EngineModel, ids: list[int], new_tokens: int) -> tuple[float, float]:
    """CPU seconds of prefill, and of prefill and decode."""
    session = model.session(len(ids) + new_tokens)
    started = time.process_time()
    session.append(ids)
    session.logits()
    prefilled = time.process_time()
    for i in range(new_tokens):
        session.append([ids[i % len(ids)]])
        session.logits()
    return prefilled - started, time.process_time() - started


def needle_rs_runner(path: Path, generation: int, query: str, prompt_tokens: int, new_tokens: int) -> Runner:
    """A trained model may end its answer before it has `new_tokens`."""
    peer = (needle_rs.V2Engine if generation == 2 else needle_rs.V3Engine).load(str(path))
    made = 0

    def seconds() -> tuple[float, float]:
        nonlocal made
        started = time.process_time()
        peer.generate(query, NO_TOOLS, max_new_tokens=1)
        one = time.process_time() - started
        started = time.process_time()
        made = len(peer.generate(query, NO_TOOLS, max_new_tokens=new_tokens + 1)["token_ids"]) - 1
        return one, time.process_time() - started

    def rates(best: Sequence[float]) -> tuple[float, float]:
        if made < 1:
            sys.exit("bench: needle-rs ended its answer at once; give another model")
        return prefill_and_whole(prompt_tokens, made, best)

    return Runner(seconds, rates)


def measure(
    path: Path, token_count: int, new_tokens: int, rounds: int, *, hosts: bool = False, onnx: bool = False
) -> dict[str, Any]:
    """Speeds by name of the runner, with a prompt of about `token_count` tokens, and what belongs to them."""
    data = path.read_bytes()
    container = read_container(data)
    engine = Engine()
    started = time.process_time()
    models = {name: engine.open(data, name=path.name, numerics=name) for name in NUMERICS}
    opened = (time.process_time() - started) / len(models)
    query = query_for(models[NUMERICS[0]], token_count)
    ids = prompt_of(models[NUMERICS[0]], query)
    rates = partial(prefill_and_whole, len(ids), new_tokens)
    runners = {
        name: Runner(partial(engine_seconds, models[name], ids, new_tokens), rates) for name in NUMERICS
    }
    runners[PEER] = needle_rs_runner(path, container.header.generation, query, len(ids), new_tokens)
    with ExitStack() as stack:
        if hosts or onnx:
            encode = models[NUMERICS[0]].encode
            per_repeat = len(encode(OFFICIAL_WORDS * 2)) - len(encode(OFFICIAL_WORDS))
            runners |= stack.enter_context(host_runners(path, ids, new_tokens, per_repeat, onnx=onnx))
        parts: dict[str, list[Sequence[float]]] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, runner in runners.items():
                parts[name].append(runner.seconds())
    speeds = {
        name: runner.rates([min(part) for part in zip(*parts[name], strict=True)])
        for name, runner in runners.items()
    }
    read_bytes, product_count = read_per_token(container)
    return {
        "model": path.name,
        "model_bytes": len(data),
        "prompt_tokens": len(ids),
        "new_tokens": new_tokens,
        "open_ms": round(opened * 1000, 1),
        "memory": {
            name: memory_of(model, len(data), len(ids) + new_tokens) for name, model in models.items()
        },
        "read_bytes_per_token": read_bytes,
        "products_per_token": product_count,
        "prefill_tps": {name: round(prefill) for name, (prefill, _) in speeds.items()},
        "decode_tps": {name: round(decode) for name, (_, decode) in speeds.items()},
    }


def memory_of(model: EngineModel, file_bytes: int, capacity_tokens: int) -> dict[str, float]:
    """The instance's memory with one session, which never shrinks, beside what it must hold."""
    cache_bytes = model.session(capacity_tokens).cache_bytes
    needed = file_bytes + cache_bytes
    return {
        "mb": round(model.memory_bytes / 1e6, 1),
        "cache_mb": round(cache_bytes / 1e6, 1),
        "of_file_and_cache": round(model.memory_bytes / needed, 3),
    }


def weigh_modules() -> dict[str, dict[str, int]]:
    """Bytes of each module, raw and gzipped."""
    folder = resources.files("builder.runtime")
    modules = {name: folder.joinpath(f"{name}.wasm").read_bytes() for name in MODULES}
    return {
        name: {"bytes": len(data), "gzip_bytes": len(gzip.compress(data, 9, mtime=0))}
        for name, data in modules.items()
    }


def print_row(row: dict[str, Any], limits: Limits) -> None:
    lengths = f"{row['prompt_tokens']} tokens, then {row['new_tokens']}"
    print(f"\n{row['model']}, {row['model_bytes']:,} bytes: {lengths}")
    for name, memory in row["memory"].items():
        share = f"{memory['of_file_and_cache']} of file and cache ({memory['cache_mb']} MB)"
        print(f"{name}: {memory['mb']} MB in all, {share}; opened in {row['open_ms']} ms")
    peers = [name for name in row["prefill_tps"] if PEER in name or "official" in name]
    heading = "".join(f"{'x ' + name:>22}" for name in peers)
    print(f"{'':26}{'prefill tok/s':>14}{'decode tok/s':>14}{heading}")
    for name, prefill in row["prefill_tps"].items():
        decode = row["decode_tps"][name]
        ratios = [(prefill / row["prefill_tps"][peer], decode / row["decode_tps"][peer]) for peer in peers]
        print(
            f"{name:26}{prefill:>14}{decode:>14}" + "".join(f"{f'{p:.1f} / {d:.1f}':>22}" for p, d in ratios)
        )
    by_products = limits.dot_products / row["products_per_token"]
    by_bytes = limits.copy_bytes / row["read_bytes_per_token"]
    print(f"{'limit: plain dot product':26}{by_products:>14.0f}{by_products:>14.0f}")
    print(f"{'limit: plain copy':26}{'':14}{by_bytes:>14.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "models", type=Path, nargs="*", metavar="MODEL", help=".cact files (default: the demo base)"
    )
    parser.add_argument(
        "--full-size", type=Path, metavar="DIR", help="made there if absent; needs 3 GB of memory"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 256, 512, 1024])
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", action="store_true", help="node and Chromium too, and the official engine")
    parser.add_argument("--onnx", action="store_true", help="--hosts, and the exported model in ONNX Runtime")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args()
    limits = measure_limits()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for path in paths_of(arguments.models, arguments.full_size, Path(folder)):
            room = read_container(path).header.max_seq_len - arguments.new_tokens
            for token_count in (count for count in arguments.tokens if count + len(QUERY) <= room):
                which = {"hosts": arguments.hosts, "onnx": arguments.onnx}
                row = measure(path, token_count, arguments.new_tokens, arguments.rounds, **which)
                rows.append(row)
                if not arguments.json:
                    print_row(row, limits)
    modules = weigh_modules()
    if not arguments.json:
        for name, size in modules.items():
            print(f"\n{name}.wasm: {size['bytes']:,} bytes, {size['gzip_bytes']:,} gzipped", end="")
        products = f"{limits.dot_products / 1e9:.1f} G products/s"
        print(f"\ncopy: {limits.copy_bytes / 1e9:.1f} GB/s; dot product: {products}\n")
    document = {"modules": modules, "limits": vars(limits), "rows": rows}
    print(json.dumps(document))
    return 0


def paths_of(models: list[Path], full_size: Path | None, folder: Path) -> list[Path]:
    """What is measured; the demo base is made in `folder`."""
    paths = list(models)
    if not paths:
        export_family(load_family(DEMO), folder)
        paths.append(folder / "base.cact")
    if full_size is not None:
        from bench.full_size_models import write_models  # heavy, and only where it is asked for

        paths += write_models(full_size)
    return paths


if __name__ == "__main__":
    sys.exit(main())
