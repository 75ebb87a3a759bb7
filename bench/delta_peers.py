"""One patch tool, one direction, one pair: run in a process of its own, so that time and memory are its own.

    python -m bench.delta_peers TOOL encode BASE TARGET PATCH
    python -m bench.delta_peers TOOL decode BASE PATCH TARGET

Prints the CPU seconds of the call itself (not of Python's start) and the process's peak memory in MB. Owns:
the Python peers. The honest opponents of a codec that knows codes are `subtract`, which subtracts nibble by
nibble in CQ tensors before xz, and bsdiff4.
"""

from __future__ import annotations

import lzma
import sys
import time
from collections.abc import Callable
from pathlib import Path

import bsdiff4
import numpy as np
import zstandard

from builder.cact.layout import Kind
from builder.cact.reader import read_container
from builder.delta import apply_patch, make_patch

ULTRA_WINDOW = 27


def _differences(base: bytes, other: bytes, sign: int) -> bytes:
    """`other` minus (sign -1) or plus base: modulo 16 on the codes of 4-bit tensors, modulo 256 elsewhere."""
    old, new = np.frombuffer(base, np.uint8), np.frombuffer(other, np.uint8)
    result = new + old if sign > 0 else new - old
    for record in read_container(base).records:
        if record.kind is Kind.CQ and record.bits == 4:
            at = slice(record.offset_bytes, record.offset_bytes + record.code_bytes)
            a, b = old[at].astype(np.int16), new[at].astype(np.int16)
            low = (b & 15) + sign * (a & 15)
            high = (b >> 4) + sign * (a >> 4)
            result[at] = (low & 15) | ((high & 15) << 4)
    return result.tobytes()


def _zstd(level: int, base: bytes) -> zstandard.ZstdCompressor:
    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=ULTRA_WINDOW, enable_ldm=True, source_size=len(base)
    )
    return zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)


def _unzstd(base: bytes, patch: bytes) -> bytes:
    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    decompressor = zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=2**ULTRA_WINDOW)
    return decompressor.decompress(patch, max_output_size=2 * len(base) + 2**20)


Call = Callable[[bytes, bytes], bytes]
TOOLS: dict[str, tuple[Call, Call]] = {
    "saguaro-0": (lambda base, target: make_patch(base, target, effort=0), apply_patch),
    "saguaro-1": (lambda base, target: make_patch(base, target, effort=1), apply_patch),
    "saguaro-3": (lambda base, target: make_patch(base, target, effort=3), apply_patch),
    "saguaro-5": (lambda base, target: make_patch(base, target, effort=5), apply_patch),
    "saguaro-5-unseeded": (
        lambda base, target: make_patch(base, target, effort=5, adapter_seed=2**32 - 1),
        apply_patch,
    ),
    "bsdiff4": (bsdiff4.diff, bsdiff4.patch),
    "subtract-xz-9": (
        lambda base, target: lzma.compress(_differences(base, target, -1), preset=9),
        lambda base, patch: _differences(base, lzma.decompress(patch), 1),
    ),
    "zstd-19": (lambda base, target: _zstd(19, base).compress(target), _unzstd),
    "zstd-22": (lambda base, target: _zstd(22, base).compress(target), _unzstd),
}


def main() -> None:
    tool, direction, base_path, given, made = sys.argv[1:]
    call = TOOLS[tool][direction == "decode"]
    base, second = Path(base_path).read_bytes(), Path(given).read_bytes()
    if tool.startswith("saguaro"):  # compile the engine outside of the measurement
        container = (Path(__file__).parents[1] / "tests" / "golden" / "tiny83.cact").read_bytes()
        make_patch(container, container)
    started = time.process_time()
    result = call(base, second)
    seconds = time.process_time() - started
    status = Path("/proc/self/status").read_text()
    print(f"{seconds:.3f} {int(status.split('VmHWM:')[1].split()[0]) * 1024 / 1e6:.0f}")
    Path(made).write_bytes(result)


if __name__ == "__main__":
    main()
