"""Run atheris on one Python reader: `python -m tests.fuzz.run_reader manifest --seconds 600`.

atheris is for development only and not among the locked extras: `pip install atheris`. New inputs are kept in
build/fuzz/reader_NAME; a finding is a file crash-* or timeout-* there.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("fuzz: atheris is missing; install it with: pip install atheris")

with atheris.instrument_imports(include=["builder"]):
    from tests.fuzz.readers import READERS

FOLDER = Path(__file__).parents[2] / "build" / "fuzz"
TIMEOUT_SECONDS = 60


def main() -> None:
    """Ends with atheris's own exit code: 0 if nothing was found."""
    parser = argparse.ArgumentParser(description="Fuzz a Python reader.")
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--seconds", type=int, default=600, help="how long (default: %(default)s)")
    arguments = parser.parse_args()
    take, seeds = READERS[arguments.reader]
    corpus = FOLDER / f"reader_{arguments.reader}" / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    os.chdir(corpus.parent)
    limits = [f"-max_total_time={arguments.seconds}", f"-timeout={TIMEOUT_SECONDS}"]
    atheris.Setup([sys.argv[0], *limits, "-max_len=30000", "-print_final_stats=1", "corpus"], take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
