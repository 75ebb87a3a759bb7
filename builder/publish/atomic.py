"""Writing a file whole or not at all.

Owns: the temporary name beside the final one. Knows nothing of: what is written.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

WRITING = re.compile(r"\.[0-9]+-[0-9]+\.writing$")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is, at every moment, as before or complete."""
    writing = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.writing")
    try:
        writing.write_bytes(data)
        os.replace(writing, path)
    finally:
        writing.unlink(missing_ok=True)


def final_name(name: str) -> str:
    """The name that a file left by a killed `write_whole` would have got; any other name as it is."""
    return WRITING.sub("", name)
