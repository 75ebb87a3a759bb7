"""The steps of a pack: each is made once, or answered by the cache.

Owns: asking the cache first, telling of what is really done, the names of both kinds.
Knows nothing of: what the steps are. Safe for several threads.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from importlib import resources

from builder.publish.cache import Cache, Made
from builder.publish.canonical import Json

# Told of each step before it, while it goes on, and after it: its name, how many steps are behind (with the
# done shares of those that go on), how many there are. From several threads, one at a time; it never falls.
Progress = Callable[[str, float, int], None]


class Steps:
    """`made` and `reused` name the steps that were done and those that the cache answered."""

    def __init__(self, cache: Cache, progress: Progress, step_count: int) -> None:
        self.cache = cache
        self._progress, self._step_count = progress, step_count
        self.made: list[str] = []
        self.reused: list[str] = []
        self._shares: dict[str, float] = {}
        self._telling = threading.Lock()

    def once(
        self,
        step: str,
        ingredients: Json,
        make: Callable[[], tuple[bytes, dict[str, float]]],
        facts: tuple[str, ...] = (),
    ) -> Made:
        """What the cache has for these ingredients, with these facts, else what `make` gives, then kept."""
        found = self.cache.get(ingredients, facts)
        if found is not None:
            self.reused.append(step)
            return found
        self.made.append(step)
        self.tell(step, 0)
        kept = self.cache.put(ingredients, *make())
        self.tell(step, 1)
        return kept

    def tell(self, step: str, share: float) -> None:
        """Say that this share of a step that is being made is done."""
        with self._telling:
            self._shares[step] = share
            behind = len(self.reused) + sum(self._shares.values())
            self._progress(step, behind, self._step_count)


def sources_sha256(*packages: str) -> str:
    """SHA-256 over the sources of these packages: what they make may change when these do."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(resources.files(package).iterdir(), key=lambda path: path.name):
            if path.name.endswith(".py"):
                digest.update(
                    f"{package}/{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
                )
    return digest.hexdigest()
