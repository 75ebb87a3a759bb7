"""Rules between the parts of a package's metadata, after each part alone was checked.

Owns: bindings, payloads and router heads name each other exactly once; options mean something.
Does not know: files, tensors.
Source: docs/experts.md, "Refusals".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from builder.experts.metadata import Metadata, refuse

Key = TypeVar("Key")


def check_references(metadata: Metadata, source: object) -> None:
    """Raise PackageError for the first rule that is broken."""
    bound = [(binding.layer, binding.expert) for binding in metadata.bindings]
    headed = [(key.layer, key.expert) for key in metadata.routers.heads]
    paired = [(key.layer, *key.experts) for key in metadata.routers.pairs]
    for keys, code, what in (
        (bound, "duplicate_binding", "bindings"),
        (headed, "duplicate_router", "routers.heads"),
        (paired, "duplicate_router", "routers.pairs"),
    ):
        twice = [key for key, count in Counter(keys).items() if count > 1]
        if twice:
            refuse(code, source, what, found=f"{list(twice[0])} there twice", allowed="there once")
    named = [binding.payload for binding in metadata.bindings]
    for name in _missing(named, metadata.payloads):
        refuse("payload_unknown", source, "bindings", found=repr(name), allowed="the name of a payload")
    for name in _missing(metadata.payloads, named):
        refuse("payload_unused", source, f"payloads.{name}", found="bound nowhere", allowed="bound")
    for key in _missing(bound, headed):
        refuse("router_missing", source, "routers.heads", found=f"without {list(key)}", allowed="complete")
    for key in _missing(headed, bound):
        refuse("router_unknown", source, "routers.heads", found=f"{list(key)}, not bound", allowed="bound")
    _check_pairs(metadata, set(bound), source)
    _check_options(metadata, source)


def _missing(keys: Iterable[Key], known: Iterable[Key]) -> list[Key]:
    there = set(known)
    return [key for key in keys if key not in there]


def _check_pairs(metadata: Metadata, bound: set[tuple[int, str]], source: object) -> None:
    wanted = metadata.mode.kind == "hierarchical_pairs"
    layers_with_pairs = {key.layer for key in metadata.routers.pairs}
    if not wanted and metadata.routers.pairs:
        allowed = f"empty in mode {metadata.mode.kind}"
        refuse("router_unknown", source, "routers.pairs", found="given", allowed=allowed)
    for layer in _missing(sorted({layer for layer, _ in bound}), layers_with_pairs) if wanted else []:
        refuse("router_missing", source, "routers.pairs", found=f"none for layer {layer}", allowed="given")
    for key in metadata.routers.pairs:
        if len(set(key.experts)) != 2 or any((key.layer, expert) not in bound for expert in key.experts):
            allowed = "two experts bound in that layer"
            refuse("router_unknown", source, "routers.pairs", found=f"{key.experts}", allowed=allowed)


def _check_options(metadata: Metadata, source: object) -> None:
    for name, record in metadata.payloads.items():
        if record.activation is not None and record.kind != "low_rank_delta":
            allowed = f"left out in a payload of kind {record.kind}"
            refuse("bad_field", source, f"payloads.{name}.activation", found="given", allowed=allowed)
        if record.scale is not None and record.kind == "full_mlp":
            allowed = "left out in a payload of kind full_mlp"
            refuse("bad_field", source, f"payloads.{name}.scale", found="given", allowed=allowed)
