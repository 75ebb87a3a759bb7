"""`ExpertPackage`: frozen expert payloads, where they are bound, and the router heads that the package owns.

Owns: the package as a value, its rules, its identity, reading and writing its directory.
Does not know: models (synchronize.py fits packages to one), other packages.
Source: docs/experts.md, "Packages".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from builder.experts.materialize import digest_tensor
from builder.experts.metadata import (
    FORMAT,
    VERSION,
    AnchoredTop1,
    Features,
    Metadata,
    Mode,
    PayloadRecord,
    canonical_json,
    read_metadata,
    refuse,
)
from builder.experts.package_files import (
    PACKAGE_BYTES_MAX,
    PackageDirectory,
    check_finite,
    dtype_name,
    write_directory,
)
from builder.experts.package_rules import check_references
from builder.experts.payloads import (
    FullMlp,
    LoraFactors,
    LowRankDelta,
    Payload,
    checked_payload,
    converted_payload,
    payload_dtype,
)
from builder.experts.router_heads import AffineRouterHead

ROUTERS_FILE = "routers.safetensors"
Pair = tuple[str, str]


@dataclass(frozen=True)
class ExpertBinding:
    """In `layer`, expert `expert_id` is this payload, made for the anchor with this hash (if any)."""

    layer: int
    expert_id: str
    payload: str
    anchor_sha256: str | None = None


@dataclass(frozen=True, eq=False)
class ExpertPackage:
    """Immutable. Every way to make one checks the same rules; two packages are equal by `identity`.

    Raises PackageError, each cause with its own code (docs/experts.md, "Refusals").
    """

    name: str
    features: Features
    payloads: Mapping[str, Payload]
    bindings: Sequence[ExpertBinding]
    """In any order; kept by layer and expert."""
    router_heads: Mapping[int, Sequence[AffineRouterHead]]
    """Heads by layer; their order is the candidate order of this package's experts in that layer."""
    pair_heads: Mapping[int, Mapping[Pair, AffineRouterHead]] = field(default_factory=dict)
    mode: Mode = field(default_factory=AnchoredTop1)
    package_directory: Path | None = None
    """Where it was read from; None for a package that was made in memory."""
    identity: str = field(init=False)
    """SHA-256 of the content: everything that is above but `package_directory`."""

    def __post_init__(self) -> None:
        source = self.subject
        for name, payload in self.payloads.items():
            check_finite({f"{name}.{key}": tensor for key, tensor in payload.tensors.items()}, source)
        payloads = {name: checked_payload(payload, source, name) for name, payload in self.payloads.items()}
        frozen = {
            "payloads": MappingProxyType(payloads),
            "bindings": tuple(sorted(self.bindings, key=lambda binding: (binding.layer, binding.expert_id))),
            "router_heads": MappingProxyType(
                {layer: tuple(heads) for layer, heads in self.router_heads.items()}
            ),
            "pair_heads": MappingProxyType(
                {k: MappingProxyType(dict(v)) for k, v in self.pair_heads.items()}
            ),
        }
        for name, value in frozen.items():
            object.__setattr__(self, name, value)
        metadata = read_metadata(canonical_json(self._document()), source, toml=False)
        check_references(metadata, source)
        check_finite(self._router_tensors(), source)
        _check_widths(self, source)
        object.__setattr__(self, "identity", self.content_sha256())

    @classmethod
    def from_directory(
        cls, directory: str | os.PathLike[str], *, bytes_max: int = PACKAGE_BYTES_MAX
    ) -> ExpertPackage:
        """Read a package of at most `bytes_max` bytes in all; nothing is kept of one that is refused."""
        files = PackageDirectory(Path(directory), bytes_max=bytes_max)
        name, data = files.read_metadata()
        metadata = read_metadata(data, files.path / name, toml=name.endswith(".toml"))
        check_references(metadata, files.path / name)
        payloads = {key: _read_payload(files, record) for key, record in metadata.payloads.items()}
        heads, pairs = _read_routers(files, metadata)
        return cls(
            name=metadata.name,
            features=metadata.features,
            payloads=payloads,
            bindings=[
                ExpertBinding(b.layer, b.expert, b.payload, b.anchor_sha256) for b in metadata.bindings
            ],
            router_heads=heads,
            pair_heads=pairs,
            mode=metadata.mode,
            package_directory=files.path,
        )

    def save(self, directory: str | os.PathLike[str]) -> ExpertPackage:
        """Write the package to a new directory and return it as read back from there."""
        files: dict[str, Mapping[str, Tensor]] = {ROUTERS_FILE: self._router_tensors()}
        for name, payload in self.payloads.items():
            files[_payload_file(name)] = payload.tensors
        write_directory(Path(directory), canonical_json(self._document()) + b"\n", files)
        return type(self).from_directory(directory)

    def converted(self, dtype: torch.dtype) -> ExpertPackage:
        """Another package: the same with payloads rounded to `dtype`. Router heads stay float32."""
        payloads = {name: converted_payload(payload, dtype) for name, payload in self.payloads.items()}
        return replace(self, payloads=payloads, package_directory=None)

    def content_sha256(self) -> str:
        """The identity, computed from the content as it is now."""
        digest = hashlib.sha256(canonical_json(self._document()))
        for name, tensor in self.named_tensors():
            digest_tensor(digest, name, tensor)
        return digest.hexdigest()

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """All tensors in the order of the identity: payloads by name, then router heads by name."""
        named = [
            (f"payloads/{name}/{key}", payload.tensors[key])
            for name, payload in sorted(self.payloads.items())
            for key in sorted(payload.tensors)
        ]
        routers = self._router_tensors()
        return named + [(f"routers/{key}", routers[key]) for key in sorted(routers)]

    def check_unchanged(self) -> None:
        """Raise PackageError (package_changed) if somebody wrote into the package's tensors."""
        found = self.content_sha256()
        if found != self.identity:
            allowed = f"{self.identity[:12]}..., as when it was made"
            refuse("changed", self.subject, "content", found=f"{found[:12]}...", allowed=allowed)

    @property
    def subject(self) -> object:
        """What a refusal is about: the directory, or the name of a package made in memory."""
        return self.package_directory or f"package {self.name!r}"

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with experts of this package, ascending."""
        return tuple(sorted(self.router_heads))

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertPackage:
        """Itself: nothing in it changes, so a copied model can share it."""
        return self

    def _document(self) -> dict[str, Any]:
        """The metadata as `save` writes it; file names follow from payload names."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "mode": self.mode.model_dump(),
            "features": self.features.model_dump(),
            "payloads": {name: _payload_record(name, payload) for name, payload in self.payloads.items()},
            "bindings": [_binding_record(binding) for binding in self.bindings],
            "routers": {
                "file": ROUTERS_FILE,
                "heads": [
                    {"layer": layer, "expert": head.expert_id}
                    for layer, heads in sorted(self.router_heads.items())
                    for head in heads
                ],
                "pairs": [
                    {"layer": layer, "experts": list(pair)}
                    for layer, pairs in sorted(self.pair_heads.items())
                    for pair in pairs
                ],
            },
        }

    def _router_tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for layer, heads in self.router_heads.items():
            for head in heads:
                tensors.update(_head_tensors(_head_name(layer, head.expert_id), head))
        for layer, pairs in self.pair_heads.items():
            for pair, head in pairs.items():
                tensors.update(_head_tensors(_pair_name(layer, pair), head))
        return tensors


def _payload_file(name: str) -> str:
    return f"payloads/{name}.safetensors"


def _payload_record(name: str, payload: Payload) -> dict[str, Any]:
    record: dict[str, Any] = {
        "kind": payload.kind,
        "dtype": dtype_name(payload_dtype(payload)),
        "file": _payload_file(name),
        "tensors": {key: list(tensor.shape) for key, tensor in payload.tensors.items()},
    }
    if isinstance(payload, LowRankDelta):
        record["activation"] = payload.activation
    if isinstance(payload, LowRankDelta | LoraFactors):
        record["scale"] = float(payload.scale)
    return record


def _binding_record(binding: ExpertBinding) -> dict[str, Any]:
    record = {"layer": binding.layer, "expert": binding.expert_id, "payload": binding.payload}
    return record if binding.anchor_sha256 is None else {**record, "anchor_sha256": binding.anchor_sha256}


def _head_name(layer: int, expert_id: str) -> str:
    return f"layers.{layer}.experts.{expert_id}"


def _pair_name(layer: int, pair: Pair) -> str:
    return f"layers.{layer}.pairs.{pair[0]}+{pair[1]}"


def _head_tensors(name: str, head: AffineRouterHead) -> dict[str, Tensor]:
    return {f"{name}.weight": head.weight, f"{name}.bias": head.bias}


def _read_payload(files: PackageDirectory, record: PayloadRecord) -> Payload:
    shapes = {name: tuple(shape) for name, shape in record.tensors.items()}
    tensors = files.read_tensors(record.file, shapes, getattr(torch, record.dtype))
    scale = 1.0 if record.scale is None else record.scale
    if record.kind == "low_rank_delta":
        return LowRankDelta(tensors, record.activation or "identity", scale)
    if record.kind == "lora":
        return LoraFactors(tensors, scale)
    return FullMlp(tensors)


def _read_routers(
    files: PackageDirectory, metadata: Metadata
) -> tuple[dict[int, list[AffineRouterHead]], dict[int, dict[Pair, AffineRouterHead]]]:
    """Heads by layer in the order of the list, and pair heads by layer and pair."""
    routers, width = metadata.routers, metadata.features.width
    single = [(key.layer, key.expert, _head_name(key.layer, key.expert)) for key in routers.heads]
    double = [(key.layer, (key.experts[0], key.experts[1])) for key in routers.pairs]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in [name for *_, name in single] + [_pair_name(layer, pair) for layer, pair in double]:
        shapes.update({f"{name}.weight": (width,), f"{name}.bias": ()})
    tensors = files.read_tensors(routers.file, shapes, torch.float32)
    heads: dict[int, list[AffineRouterHead]] = {}
    for layer, expert, name in single:
        head = AffineRouterHead(expert, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
        heads.setdefault(layer, []).append(head)
    pairs: dict[int, dict[Pair, AffineRouterHead]] = {}
    for layer, pair in double:
        name = _pair_name(layer, pair)
        head = AffineRouterHead("+".join(pair), tensors[f"{name}.weight"], tensors[f"{name}.bias"])
        pairs.setdefault(layer, {})[pair] = head
    return heads, pairs


def _check_widths(package: ExpertPackage, source: object) -> None:
    """Heads that were made in memory: those of a file were checked against the declared width."""
    for name, tensor in package._router_tensors().items():
        if name.endswith(".weight") and len(tensor) != package.features.width:
            allowed = f"{package.features.width}, the width of the features"
            refuse("wrong_shape", source, f"routers.{name}", found=len(tensor), allowed=allowed)
