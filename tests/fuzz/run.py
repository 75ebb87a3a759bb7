"""Build one fuzzed surface with libFuzzer and run it: `python -m tests.fuzz.run rebuild --seconds 600`.

Owns: the clang flags of fuzzing. New inputs are kept in build/fuzz/TARGET; a finding is a file beside them,
called crash-, slow-unit- or timeout-. docs/fuzzing.md says what each surface promises.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fuzz.make_seeds import SEEDS
from tests.fuzz.models import ENVIRONMENT, write_models

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine"
HERE = Path(__file__).parent
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c"))
FLAGS = [
    *("-std=c11", "-O2", "-g", "-ffp-contract=off", "-fno-math-errno", "-fno-omit-frame-pointer"),
    *("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
    *(f"-I{ENGINE / 'include'}", f"-I{ENGINE / 'src'}"),
]
INPUT_BYTES_MAX = 6000
MEMORY_MB_MAX = 3000
TIMEOUT_SECONDS = 120


def main() -> int:
    """The exit code is libFuzzer's: 0 if nothing was found."""
    parser = argparse.ArgumentParser(description="Fuzz the engine's native build.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=600, help="how long (default: %(default)s)")
    arguments = parser.parse_args()
    if shutil.which("clang") is None:
        sys.exit("fuzz: clang is missing; on Debian: apt-get install clang libclang-rt-14-dev")
    folder = ROOT / "build" / "fuzz" / arguments.target
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    program = folder / "fuzz"
    sources = [*sorted((ENGINE / "src").glob("*.c")), HERE / "entry.c", HERE / f"fuzz_{arguments.target}.c"]
    define = f"-DTARGET=fuzz_{arguments.target}"
    subprocess.run(["clang", *FLAGS, define, *map(str, sources), "-o", str(program)], check=True)
    environment = {**os.environ, ENVIRONMENT: str(write_models(folder / "models"))}
    limits = [
        *(f"-max_total_time={arguments.seconds}", f"-max_len={INPUT_BYTES_MAX}"),
        *(f"-rss_limit_mb={MEMORY_MB_MAX}", f"-timeout={TIMEOUT_SECONDS}"),
        *("-print_funcs=0", "-print_final_stats=1"),  # looking names up would take most of the time
    ]
    command = [str(program), *limits, "corpus", str(SEEDS / arguments.target)]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
