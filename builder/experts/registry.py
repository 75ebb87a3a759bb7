"""The registry: which packages are active, in which order.

Owns: installation, removal, historical slots, the registry's hash.
Does not know: models, layers, tensors. Nothing here changes what a model computes.
Source: docs/experts.md, "Registry".
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

from builder.errors import PackageError
from builder.experts.metadata import canonical_json
from builder.experts.package import ExpertPackage


@dataclass(frozen=True, eq=False)
class RegistrySnapshot:
    """The active packages at one moment, in slot order."""

    packages: tuple[ExpertPackage, ...]
    registry_sha256: str = field(init=False)
    """Over the identities in order: equal registries behave equally, whatever was installed in between."""

    def __post_init__(self) -> None:
        identities = [package.identity for package in self.packages]
        document = {"format": "saguaro-expert-registry", "version": 1, "packages": identities}
        object.__setattr__(self, "registry_sha256", hashlib.sha256(canonical_json(document)).hexdigest())


class ExpertRegistry:
    """Packages in slots: a new one gets the next slot, and one that comes back gets the slot that it had.

    So the order of experts after a reinsertion is the order before the removal. Writers replace whole values
    under a lock; readers take the value that is there.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}  # identity -> slot, also of packages that are not active
        self._active: tuple[ExpertPackage, ...] = ()  # in slot order
        self._writing = threading.Lock()

    def install(self, package: ExpertPackage) -> int:
        """Make a package active and return its slot. Raises PackageError (package_installed)."""
        with self._writing:
            if self._is_active(package.identity):
                raise PackageError(
                    f"package {package.name!r}: is installed already, must be unloaded first",
                    code="package_installed",
                )
            slots = {**self._slots}
            slot = slots.setdefault(package.identity, len(slots))
            active = sorted((*self._active, package), key=lambda each: slots[each.identity])
            self._slots, self._active = slots, tuple(active)
            return slot

    def unload(self, identity: str) -> None:
        """Make a package inactive. Raises PackageError (package_not_installed)."""
        with self._writing:
            if not self._is_active(identity):
                raise PackageError(
                    f"package {identity[:12]}...: is not installed, must be one of the active packages",
                    code="package_not_installed",
                )
            self._active = tuple(package for package in self._active if package.identity != identity)

    def snapshot(self) -> RegistrySnapshot:
        """What is active now."""
        return RegistrySnapshot(self._active)

    @property
    def slots(self) -> dict[str, int]:
        """Every identity that was ever installed, and its slot."""
        return dict(self._slots)

    def _is_active(self, identity: str) -> bool:
        return any(package.identity == identity for package in self._active)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock, which cannot be copied."""
        return {name: value for name, value in self.__dict__.items() if name != "_writing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._writing = threading.Lock()
