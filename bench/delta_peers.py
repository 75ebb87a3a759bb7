"""One patch tool, one direction, one pair: run in a process of its own, so that time and memory are its own.

    python -m bench.delta_peers TOOL encode BASE TARGET PATCH
    python -m bench.delta_peers TOOL decode BASE PATCH TARGET

Prints the CPU seconds of the call itself (not of Python's start) and the process's peak memory in MB; for a
program, both are the program's. Owns: the peers, and what each is here. The honest opponents of a codec that
knows codes are `subtract`, which subtracts nibble by nibble in CQ tensors before xz, and bsdiff4.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import lzma
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from builder.cact.layout import Kind
from builder.cact.reader import read_container
from builder.delta import apply_patch, make_patch

XDELTA3 = ("xdelta3", "-f", "-B", "134217728")

Call = Callable[[bytes, bytes], bytes]
Words = Callable[[str, str, str], list[str]]


@dataclass(frozen=True)
class Tool:
    """Python code for both directions; its `package` may be missing here."""

    encode: Call
    decode: Call
    about: str
    package: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether it can be run."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    @property
    def source(self) -> str:
        """What was measured, or why nothing was."""
        if not self.is_here:
            return f"not installed: Python's {self.package}"
        return f"{self.about} {importlib.metadata.version(self.package)}" if self.package else self.about


@dataclass(frozen=True)
class Program:
    """A program's words for both directions, from the paths of base, what is given and what comes out."""

    encode: Words
    decode: Words
    about: str

    @property
    def name(self) -> str:
        """What is looked for."""
        return self.encode("", "", "")[0]

    @property
    def is_here(self) -> bool:
        """Whether it can be run."""
        return shutil.which(self.name) is not None

    @property
    def source(self) -> str:
        """What was measured, or why nothing was."""
        return self.about if self.is_here else f"not installed: the program {self.name}"


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


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _zstd(level: int) -> Program:
    words = ("zstd", "-q", "-f", "--ultra", f"-{level}")
    return Program(
        lambda base, target, patch: [*words, f"--patch-from={base}", target, "-o", patch],
        lambda base, patch, target: [*words[:3], "-d", f"--patch-from={base}", patch, "-o", target],
        f"zstd --ultra -{level} --patch-from, program",
    )


def _saguaro(effort: int, adapter_seed: int = 0) -> Tool:
    return Tool(
        lambda base, target: make_patch(base, target, effort=effort, adapter_seed=adapter_seed),
        apply_patch,
        f"effort {effort}" + (", start of the adapter unknown" if adapter_seed else ""),
    )


TOOLS: dict[str, Tool | Program] = {
    "saguaro-0": _saguaro(0),
    "saguaro-1": _saguaro(1),
    "saguaro-3": _saguaro(3),
    "saguaro-5": _saguaro(5),
    "saguaro-5-unseeded": _saguaro(5, 2**32 - 1),
    "subtract-xz-9": Tool(
        lambda base, target: lzma.compress(_differences(base, target, -1), preset=9),
        lambda base, patch: _differences(base, lzma.decompress(patch), 1),
        "codes subtracted modulo 16, then xz -9",
    ),
    "bsdiff4": Tool(
        lambda base, target: bytes(_module("bsdiff4").diff(base, target)),
        lambda base, patch: bytes(_module("bsdiff4").patch(base, patch)),
        "bsdiff4",
        package="bsdiff4",
    ),
    "hdiffpatch": Tool(
        lambda base, target: bytes(
            _module("hdiffpatch").diff(base, target, _module("hdiffpatch").Lzma2Config())
        ),
        lambda base, patch: bytes(_module("hdiffpatch").apply(base, patch)),
        "HDiffPatch with LZMA2, hdiffpatch",
        package="hdiffpatch",
    ),
    "zstd-19": _zstd(19),
    "zstd-22": _zstd(22),
    "xdelta3": Program(
        lambda base, target, patch: [*XDELTA3, "-e", "-9", "-S", "lzma", "-s", base, target, patch],
        lambda base, patch, target: [*XDELTA3, "-d", "-s", base, patch, target],
        "xdelta3 -9 -S lzma -B 128 MiB, program",
    ),
}


def main() -> None:
    name, direction, *paths = sys.argv[1:]
    tool = TOOLS[name]
    if isinstance(tool, Program):
        seconds, peak_kib = run_program((tool.decode if direction == "decode" else tool.encode)(*paths))
    else:
        seconds, peak_kib = run_here(name, tool.decode if direction == "decode" else tool.encode, *paths)
    print(f"{seconds:.3f} {peak_kib * 1024 / 1e6:.0f}")


def run_here(name: str, call: Call, base_path: str, given: str, made: str) -> tuple[float, int]:
    """CPU seconds of the call, and this process's peak in KiB."""
    base, second = Path(base_path).read_bytes(), Path(given).read_bytes()
    if name.startswith("saguaro"):  # compile the engine outside of the measurement
        container = (Path(__file__).parents[1] / "tests" / "golden" / "tiny83.cact").read_bytes()
        apply_patch(container, make_patch(container, container))
    started = time.process_time()
    result = call(base, second)
    seconds = time.process_time() - started
    Path(made).write_bytes(result)
    status = Path("/proc/self/status").read_text()
    return seconds, int(status.split("VmHWM:")[1].split()[0])


def run_program(words: list[str]) -> tuple[float, int]:
    """CPU seconds and peak in KiB of a program; Linux counts this small process's own peak as its least."""
    subprocess.run(words, check=True, capture_output=True)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss


if __name__ == "__main__":
    main()
