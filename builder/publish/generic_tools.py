"""What generic tools would make of a pair of files: the honest opponents that the report names.

Owns: which tools are here, and the size that each needs for one pair, in one thread, so that it is the same
each time. Does not know: containers, sites. Nothing is decoded here: `python -m bench.delta` does that.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import lzma
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from builder.errors import RefusedError, plain_text

ZSTD_LEVEL = 19
XZ_PRESET = 6
WINDOW_LOG_MIN, WINDOW_LOG_MAX = 10, 31

Measure = Callable[[bytes, bytes], int]


@dataclass(frozen=True)
class GenericSize:
    """One tool's result for one pair."""

    tool: str
    byte_count: int


@dataclass(frozen=True)
class GenericTool:
    """A tool that was found: its name, and how to ask it for the size of a patch from base to target."""

    name: str
    measure: Measure


def found_tools() -> list[GenericTool]:
    """All that is here: bsdiff and zstd as Python package or as program; xz comes with Python."""
    found = [_bsdiff(), _zstd(), GenericTool(f"xz -{XZ_PRESET} of the differences (Python)", _xz_bytes)]
    return [tool for tool in found if tool is not None]


def best_size(tools: list[GenericTool], base: bytes, target: bytes) -> GenericSize:
    """The smallest; of equals the first."""
    sizes = [GenericSize(tool.name, tool.measure(base, target)) for tool in tools]
    return min(sizes, key=lambda size: size.byte_count)


def _bsdiff() -> GenericTool | None:
    if importlib.util.find_spec("bsdiff4"):
        name = f"bsdiff4 {importlib.metadata.version('bsdiff4')} (Python)"
        return GenericTool(
            name, lambda base, target: len(importlib.import_module("bsdiff4").diff(base, target))
        )
    if program := shutil.which("bsdiff"):
        return GenericTool(
            "bsdiff (program)", _program(lambda base, target, out: [program, base, target, out])
        )
    return None


def _zstd() -> GenericTool | None:
    if importlib.util.find_spec("zstandard"):
        version = importlib.metadata.version("zstandard")
        return GenericTool(
            f"zstandard {version} -{ZSTD_LEVEL}, base as dictionary (Python)", _zstandard_bytes
        )
    if program := shutil.which("zstd"):
        options = [program, f"-{ZSTD_LEVEL}", "--single-thread", "--long=31", "-q", "-f"]
        measure = _program(lambda base, target, out: [*options, f"--patch-from={base}", target, "-o", out])
        return GenericTool(f"zstd -{ZSTD_LEVEL} --patch-from (program)", measure)
    return None


def _zstandard_bytes(base: bytes, target: bytes) -> int:
    zstandard = importlib.import_module("zstandard")
    dictionary = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    window_log = min(max((len(base) + len(target)).bit_length(), WINDOW_LOG_MIN), WINDOW_LOG_MAX)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        ZSTD_LEVEL, window_log=window_log, enable_ldm=True, source_size=len(target)
    )
    return len(zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(target))


def _xz_bytes(base: bytes, target: bytes) -> int:
    """The target less the base, byte by byte modulo 256, where both have the same size; else the target."""
    if len(base) == len(target):
        target = (np.frombuffer(target, np.uint8) - np.frombuffer(base, np.uint8)).tobytes()
    return len(lzma.compress(target, preset=XZ_PRESET))


def _program(words: Callable[[str, str, str], list[str]]) -> Measure:
    """The size of what a program writes; its words are made from the paths of base, target and patch."""

    def measure(base: bytes, target: bytes) -> int:
        with tempfile.TemporaryDirectory() as name:
            paths = [Path(name) / part for part in ("base", "target", "patch")]
            paths[0].write_bytes(base)
            paths[1].write_bytes(target)
            command = words(*map(str, paths))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = plain_text(done.stderr.strip()[:200])
                raise RefusedError(f"{command[0]}: ended with {done.returncode}: {said}", code="tool_failed")
            return paths[2].stat().st_size

    return measure
