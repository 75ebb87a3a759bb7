"""What bounds the engine on this machine, for `bench.engine`: a copy and a dot product in wasmtime.

Owns: both loops (engine_limits.c), and what a model reads and multiplies for one token. Knows nothing of:
speed rows, hosts.
"""

from __future__ import annotations

import runpy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.cact.layout import Kind
from builder.cact.order import model_slots
from builder.cact.reader import Container
from builder.runtime.engine import Engine

BUILD = Path(__file__).parents[1] / "engine" / "build.py"
SOURCE = Path(__file__).with_name("engine_limits.c")
COPY_BYTES, COPY_ROUNDS = 1 << 25, 8
"""More than the last cache holds."""
DOT_ROUNDS, DOT_PRODUCTS = 2_000_000, 64
TRIES = 5


@dataclass(frozen=True)
class Limits:
    """Per second of one thread: bytes that a copy reads, products of 16-bit numbers that a loop adds up."""

    copy_bytes: float
    dot_products: float


def measure_limits() -> Limits:
    """The best of a few tries, processor time."""
    with tempfile.TemporaryDirectory() as folder:
        path = runpy.run_path(str(BUILD))["compile_wasm"](Path(folder) / "limits.wasm", probes=[SOURCE])
        probe = Engine(path.read_bytes()).instance()
    source, target = probe.reserve(COPY_BYTES), probe.reserve(COPY_BYTES)
    copy = best_seconds(lambda: probe.call("limit_copy", target, source, COPY_BYTES, COPY_ROUNDS))
    dot = best_seconds(lambda: probe.call("limit_dot", source, DOT_ROUNDS))
    return Limits(COPY_BYTES * COPY_ROUNDS / copy, DOT_ROUNDS * DOT_PRODUCTS / dot)


def best_seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TRIES):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def read_per_token(container: Container) -> tuple[int, int]:
    """Bytes of CQ matrices that one decoded token reads, and the products that it forms with them."""
    byte_count = product_count = 0
    for slot in model_slots(container.header):
        if slot.kind is Kind.CQ and not slot.name.endswith("tables"):  # of a table, a token reads a few rows
            byte_count += len(container.raw(slot.name))
            product_count += slot.shape[0] * slot.shape[1]
    return byte_count, product_count
