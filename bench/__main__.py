"""Every measurement, one after the other: `python -m bench`. Each also runs alone: `python -m bench.NAME`.

Nothing here gates anything. Ratios against peers are taken within one run; docs/ names each command.
"""

from __future__ import annotations

import subprocess
import sys

BENCHES = ("pack", "delta", "engine", "grammar", "web", "experts")


def main() -> int:
    """Run all, each in a process of its own so that none warms another; 1 if any could not be run."""
    failed = [name for name in BENCHES if subprocess.run([sys.executable, "-m", f"bench.{name}"]).returncode]
    for name in failed:
        print(f"bench: {name} could not be measured", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
