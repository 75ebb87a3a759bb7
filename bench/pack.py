"""What publishing costs: seconds of pack and verify, and what the page weighs without its models.

    python -m bench.pack

Owns: the demo's row. Each time is the best of three in this process; a cold pack exports and patches all,
a warm one finds it in the cache. Wire bytes are gzip level 6, file by file, as GitHub Pages and a default
nginx send them.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from builder.family.family import load_family
from builder.publish.folder import site_files
from builder.publish.pack import Options, pack
from builder.publish.pack_command import demo_family
from builder.publish.pages import default_web_folder
from builder.publish.parts import PART_BYTES_DEFAULT
from builder.publish.verify import verify

REPEATS = 3


def main() -> None:
    """Print a table, then one JSON document on the last line."""
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    for name, value in figures.items():
        print(f"{name:24} {value:>12,}" if isinstance(value, int) else f"{name:24} {value:>12.2f}")
    print(json.dumps(figures))


def measure(folder: Path) -> dict[str, float | int]:
    """Seconds and bytes for the demo family."""
    site, cache = folder / "site", folder / "cache"
    options = Options(PART_BYTES_DEFAULT, 2, cache, default_web_folder())
    family = load_family(demo_family())

    def make() -> None:
        pack(family, site, options, lambda step, done, total: None)

    def make_cold() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        make()

    return {
        "pack_cold_s": best(make_cold),
        "pack_warm_s": best(make),
        "verify_s": best(lambda: verify(site)),
        **weigh(site),
    }


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(min(times), 2)


def weigh(site: Path) -> dict[str, int]:
    """Bytes on disk and over the wire, and requests, of all that is no model."""
    files = {path: (site / path).read_bytes() for path in site_files(site) if not path.startswith("parts/")}
    engine = {path: data for path, data in files.items() if path.endswith(".wasm")}
    page = {path: data for path, data in files.items() if path not in engine}
    return {
        "engine_bytes": sum(map(len, engine.values())),
        "engine_wire_bytes": sum(map(wire_bytes, engine.values())),
        "page_bytes": sum(map(len, page.values())),
        "page_wire_bytes": sum(map(wire_bytes, page.values())),
        "page_files": len(page),
    }


def wire_bytes(data: bytes) -> int:
    """Size as a host sends it."""
    return min(len(data), len(gzip.compress(data, compresslevel=6, mtime=0)))


if __name__ == "__main__":
    main()
