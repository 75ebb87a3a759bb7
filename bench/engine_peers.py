"""The engine in JavaScript hosts, and the official WebAssembly engine, for `bench.engine`.

Owns: what each of them is asked, and how its seconds become rates. Knows nothing of: rounds, tables.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.engine_hosts import Chromium, Host, chromium_host, cpu_seconds, node_host
from builder.cact.layout import TAG_82
from builder.cact.reader import read_container
from builder.cact.writer import blobs_of, write_container
from builder.runtime.engine import NUMERICS

MODULES = Path(__file__).parents[1] / "builder" / "runtime"
OFFICIAL_WORDS = "turn on the lamp in the kitchen and "
"""As in engine_host.js."""
OFFICIAL_FEW, OFFICIAL_MANY = 8, 72
"""Tokens at most of a short and of a longer answer."""


@dataclass(frozen=True)
class Runner:
    """Something that is timed in parts; the least time of each part over all rounds makes its rates."""

    seconds: Callable[[], Sequence[float]]
    rates: Callable[[Sequence[float]], tuple[float, float]]
    """Tokens per second of prefill and decode."""


def prefill_and_whole(prompt_tokens: int, new_tokens: int, seconds: Sequence[float]) -> tuple[float, float]:
    """Rates from the seconds of the prefill, and of prefill and decode."""
    prefill, whole = seconds
    return prompt_tokens / prefill, new_tokens / (whole - prefill)


@contextmanager
def host_runners(
    path: Path, ids: list[int], new_tokens: int, tokens_per_repeat: int, *, onnx: bool
) -> Iterator[dict[str, Runner]]:
    """Both modules in node and Chromium; the official engine where there is a copy and it reads the file.

    `onnx` adds the exported model in ONNX Runtime.
    """
    official = os.environ.get("SAGUARO_OFFICIAL_WASM")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runners: dict[str, Runner] = {}
        node = Path(sys.executable).with_name("node")
        for where, opened in (("node", node_host(node)), ("chromium", chromium_host())):
            host = stack.enter_context(opened)
            runners |= _engine_runners(where, host, path, ids, new_tokens)
            if official and read_container(path).header.generation == 2:
                runners[f"{where} official"] = _official(
                    where, host, path, folder, official, len(ids), tokens_per_repeat
                )
            if onnx and isinstance(host, Chromium):
                from bench.engine_onnx import onnx_runners  # heavy, and only where it is asked for

                runners |= onnx_runners(host, path, ids, new_tokens)
        yield runners


def _engine_runners(where: str, host: Host, path: Path, ids: list[int], new_tokens: int) -> dict[str, Runner]:
    def seconds(name: str) -> tuple[float, float]:
        prefill, _ = cpu_seconds(host, {"run": "prefill", "name": name, "ids": ids})
        decode, _ = cpu_seconds(host, {"run": "decode", "name": name, "ids": ids, "newTokens": new_tokens})
        return prefill, prefill + decode

    runners = {}
    for module, numerics in (("engine", "exact"), ("engine", "fast"), ("engine_relaxed", "fast")):
        name = f"{where} {numerics}" + (" relaxed" if module == "engine_relaxed" else "")
        opening = {"open": "engine", "wasm": str(MODULES / f"{module}.wasm"), "model": str(path)}
        number = NUMERICS.index(numerics)
        host.ask({**opening, "name": name, "numerics": number, "capacity": len(ids) + new_tokens})
        runners[name] = Runner(partial(seconds, name), partial(prefill_and_whole, len(ids), new_tokens))
    return runners


def _official(
    where: str,
    host: Host,
    path: Path,
    folder: Path,
    official: str,
    prompt_tokens: int,
    tokens_per_repeat: int,
) -> Runner:
    """It tells no times apart, so the differences of three answers are taken.

    A prompt can only be repeated words; it has about as many tokens as the others' prompt.
    """
    repeat = max(2, round(prompt_tokens / tokens_per_repeat))
    answers = ((1, OFFICIAL_FEW), (repeat, OFFICIAL_FEW), (repeat, OFFICIAL_MANY))
    container = read_container(path)
    model, runtime = folder / "official.cact", folder / "needle2-runtime.mjs"
    # Of both tags that a file of this geometry can have, it reads the older one only.
    header = dataclasses.replace(container.header, tag=TAG_82)
    model.write_bytes(write_container(header, blobs_of(container)))
    shutil.copy(Path(official).with_name("needle2-runtime.js"), runtime)
    files = {"wasm": official, "runtime": str(runtime), "model": str(model)}
    host.ask({"open": "official", "name": f"{where} official", **files})
    made = [0] * len(answers)

    def seconds() -> list[float]:
        found = []
        for place, (times, new_tokens) in enumerate(answers):
            command = {
                "run": "complete",
                "name": f"{where} official",
                "repeat": times,
                "newTokens": new_tokens,
            }
            spent, answer = cpu_seconds(host, command)
            made[place] = answer["made"]
            found.append(spent)
        return found

    def rates(best: Sequence[float]) -> tuple[float, float]:
        short, long, longer = best
        per_token = (longer - long) / (made[2] - made[1])
        more_tokens = tokens_per_repeat * (repeat - 1)
        return more_tokens / (long - short - (made[1] - made[0]) * per_token), 1 / per_token

    return Runner(seconds, rates)
