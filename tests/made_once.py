"""What several tests need and takes seconds to make: made once a run, whichever process asks first."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


class MadeOnce:
    """Files and folders by name, shared by the processes of a run; nobody may change them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        """The path of `name`: the first who asks calls `make` with a free path, the others wait."""
        path = self._folder / name
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=self._folder) as half:
                    make(Path(half) / name)
                    os.replace(Path(half) / name, path)
        return path
