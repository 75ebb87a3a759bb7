"""One writer at a time in a folder.

Owns: the system's lock on the folder itself, which leaves no file and ends with the process.
Knows nothing of: what is written there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold the folder's lock for the `with` block: many may hold it `shared`, or one alone.

    `shared` waits while somebody is alone; False, and no lock, if one cannot be alone, or the folder went.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _try_lock(handle, folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def _try_lock(handle: int, folder: Path, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind)
        return os.path.samestat(os.fstat(handle), folder.stat())  # It may have been removed meanwhile.
    except (BlockingIOError, FileNotFoundError):
        return False
