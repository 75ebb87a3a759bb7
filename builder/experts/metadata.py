"""The metadata of an expert package: `package.json` or `package.toml`, read from untrusted bytes.

Owns: the strict model of the document, its limits, its canonical form.
Does not know: where the bytes come from, tensors, models.
Source: docs/experts.md, "The package on disk".
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from builder.errors import PackageError, refusal

SPEC = "docs/experts.md"
FORMAT = "saguaro-expert-package"
VERSION = 1
JSON_NAME = "package.json"
TOML_NAME = "package.toml"
METADATA_BYTES_MAX = 1024 * 1024
ENTRIES_MAX = 4096  # payloads, bindings or heads of one package
LAYERS_MAX = 4096

ExpertId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$")]
# Payload names become file names, so they must differ on file systems that ignore case.
PayloadName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
TensorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.]{0,199}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Path = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]{1,200}$")]
Layer = Annotated[int, Field(ge=0, lt=LAYERS_MAX)]
Shape = Annotated[list[Annotated[int, Field(ge=1, lt=2**31)]], Field(max_length=8)]
Scale = Annotated[float, Field(allow_inf_nan=False)]
DtypeName = Literal["float32", "float16", "bfloat16"]
Activation = Literal["identity", "relu", "silu", "gelu"]
Combination = Literal["softmax", "unit", "sigmoid"]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class AnchoredTop1(_Record):
    """Each token takes the anchor or one expert."""

    kind: Literal["anchored_top1"] = "anchored_top1"


class PairTop2(_Record):
    """Each token takes the anchor, one surviving expert, or two mixed experts."""

    kind: Literal["pair_top2"] = "pair_top2"


class HierarchicalPairs(_Record):
    """Pair heads select one declared pair; member heads weigh the two experts in it."""

    kind: Literal["hierarchical_pairs"] = "hierarchical_pairs"


class AnchorDeltas(_Record):
    """The anchor always runs; up to `deltas_max` low-rank deltas are added to it."""

    kind: Literal["anchor_plus_deltas"] = "anchor_plus_deltas"
    deltas_max: Literal[1, 2] = 2
    combination: Combination = "unit"


class LoraMerge(_Record):
    """The anchor's projections with up to `updates_max` weighted LoRA updates."""

    kind: Literal["lora_merge"] = "lora_merge"
    updates_max: Literal[1, 2] = 2
    combination: Combination = "softmax"


Mode = Annotated[
    AnchoredTop1 | PairTop2 | HierarchicalPairs | AnchorDeltas | LoraMerge, Field(discriminator="kind")
]


class Features(_Record):
    """What the router heads look at: the kind of extractor and how wide its output is."""

    kind: ExpertId = "identity"
    width: int = Field(ge=1, lt=2**24)


class PayloadRecord(_Record):
    """One payload: every tensor with its shape, so that the file can be checked before anything is made."""

    kind: Literal["full_mlp", "low_rank_delta", "lora"]
    dtype: DtypeName
    file: Path
    tensors: dict[TensorName, Shape] = Field(min_length=1, max_length=ENTRIES_MAX)
    activation: Activation | None = None
    scale: Scale | None = None


class Binding(_Record):
    """Which payload is which expert in which layer, and (optionally) for which anchor it was made."""

    layer: Layer
    expert: ExpertId
    payload: PayloadName
    anchor_sha256: Sha256 | None = None


class HeadKey(_Record):
    """A router head's place; the order of the list is the candidate order of the package."""

    layer: Layer
    expert: ExpertId


class PairKey(_Record):
    """A pair head's place."""

    layer: Layer
    experts: Annotated[list[ExpertId], Field(min_length=2, max_length=2)]


class Routers(_Record):
    """Where the affine heads are, in order."""

    file: Path
    heads: list[HeadKey] = Field(min_length=1, max_length=ENTRIES_MAX)
    pairs: list[PairKey] = Field(default=[], max_length=ENTRIES_MAX)


class Metadata(_Record):
    """The whole document."""

    format: Literal["saguaro-expert-package"]
    version: Literal[1]
    name: PackageName
    mode: Mode = AnchoredTop1()
    features: Features
    payloads: dict[PayloadName, PayloadRecord] = Field(min_length=1, max_length=ENTRIES_MAX)
    bindings: list[Binding] = Field(min_length=1, max_length=ENTRIES_MAX)
    routers: Routers


def read_metadata(data: bytes, source: object, *, toml: bool) -> Metadata:
    """Check untrusted bytes, field by field. Raises PackageError with one sentence."""
    document = _parse(data, source, toml=toml)
    for field, wanted in (("format", FORMAT), ("version", VERSION)):
        if document.get(field) != wanted:
            refuse("format", source, field, found=short(document.get(field)), allowed=repr(wanted))
    try:
        return Metadata.model_validate(document)
    except ValidationError as error:
        _refuse_field(source, error)


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """One text per document: sorted keys, no spaces, ASCII. The identity is taken over it."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def refuse(
    code: str, source: object, field: str, *, found: object, allowed: str, next_step: str | None = None
) -> NoReturn:
    """Raise a PackageError in the house form; `code` without its prefix `package_`."""
    sentence = refusal(source, field, found=found, allowed=allowed, spec=SPEC, next_step=next_step)
    raise PackageError(sentence, code=f"package_{code}")


def short(value: object) -> str:
    """`repr` that fits a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parse(data: bytes, source: object, *, toml: bool) -> dict[str, Any]:
    kind = "TOML" if toml else "JSON"
    try:
        text = data.decode("utf-8")
        document = tomllib.loads(text) if toml else _parse_json(text, source)
    except RecursionError:
        refuse("metadata", source, "document", found="nested too deeply", allowed="a few levels deep")
    except ValueError as error:
        refuse("metadata", source, "document", found=f"not {kind} ({error})", allowed=f"one {kind} document")
    if not isinstance(document, dict):
        refuse("metadata", source, "document", found=short(document), allowed="one object")
    return document


def _parse_json(text: str, source: object) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                refuse("duplicate_key", source, short(key), found="there twice", allowed="there once")
            found[key] = value
        return found

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    return json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)


def _refuse_field(source: object, error: ValidationError) -> NoReturn:
    """The first thing that is wrong. An unknown key is told before the fields it may have been meant for."""
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in first["loc"])
    where = where.lstrip(".")
    if first["type"] == "extra_forbidden":
        refuse("unknown_key", source, where, found="not a key of the format", allowed="left out")
    if first["type"] == "missing":
        refuse("missing_key", source, where, found="missing", allowed="given")
    if first["type"] == "union_tag_invalid":
        found, allowed = short(first["ctx"]["tag"]), f"one of {first['ctx']['expected_tags']}"
        refuse("bad_field", source, f"{where}.kind", found=found, allowed=allowed)
    if first["type"] == "string_pattern_mismatch":
        allowed = f"text of the form {first['ctx']['pattern']}"
    else:
        allowed = first["msg"].removeprefix("Input should ").removeprefix("be ").replace("tuple", "list")
    refuse("bad_field", source, where, found=short(first["input"]), allowed=allowed)


def _key(text: str) -> str:
    """A key as it stands where it can be printed in a sentence."""
    return text if text.isprintable() and len(text) <= 60 else short(text)
