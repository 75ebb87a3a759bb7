"""The manifest `family.json`: what a site holds, every size and every hash.

Owns: the strict model of the document, reading it from untrusted bytes, writing it, its `release` hash, its
schema. Knows nothing of: files on disk, the page. Source: docs/formats/manifest.md.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from builder.errors import ManifestError, RefusedError, refusal
from builder.family.settings import MEMBER_ID, Line
from builder.files import load_json
from builder.publish.canonical import canonical_json, canonical_sha256

SPEC = "docs/formats/manifest.md"
FORMAT = "saguaro-family"
VERSION = 1
MANIFEST_BYTES_MAX = 1024 * 1024
PART_BYTES_MAX = 25 * 1024 * 1024  # Cloudflare Pages serves no larger file.
MODEL_BYTES_MAX = 2**32 - 1  # A rebuilt model must fit a 32-bit WebAssembly memory.
TOOLS_LENGTH_MAX = 256 * 1024
UPGRADES_MAX = 16
DEPTH_MAX = 64
"""Lists and objects within each other; what a parser takes beyond depends on the machine."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MemberId = Annotated[str, StringConstraints(pattern=f"^{MEMBER_ID}$")]
Tag = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{8}$")]
ModelBytes = Annotated[int, Field(ge=1, le=MODEL_BYTES_MAX)]
Checked = TypeVar("Checked")


def part_path(sha256: str) -> str:
    """Where a part of a model lies: its name is its hash, its suffix means nothing to any host."""
    return f"parts/{sha256}.bin"


def engine_path(sha256: str) -> str:
    """Where the engine lies."""
    return f"engine.{sha256[:12]}.wasm"


def app_path(sha256: str) -> str:
    """The folder of the page's modules."""
    return f"app/{sha256[:12]}"


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Part(_Record):
    """One file of at most 25 MiB."""

    path: str
    bytes: int = Field(ge=1, le=PART_BYTES_MAX)
    sha256: Sha256

    @model_validator(mode="after")
    def _name_is_hash(self) -> Part:
        return _require(self, "path", self.path, part_path(self.sha256))


class Delivery(_Record):
    """How a member travels: joined, the parts are its container (`whole`) or a patch against the base."""

    kind: Literal["whole", "patch"]
    bytes: ModelBytes
    sha256: Sha256 | None = Field(default=None, description="of the patch; absent if whole")
    parts: tuple[Part, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _sums_up(self) -> Delivery:
        if (self.sha256 is not None) != (self.kind == "patch"):
            raise ValueError("sha256: must be present for a patch and absent for a whole file")
        if len(self.parts) == 1 and self.sha256 is not None:
            _require(self, "parts[0].sha256", self.parts[0].sha256, self.sha256)
        return _require(self, "bytes", self.bytes, sum(part.bytes for part in self.parts))


class Piece(_Record):
    """One part of a file of an earlier release, as visitors have kept it; it is never fetched."""

    bytes: int = Field(ge=1, le=PART_BYTES_MAX)
    sha256: Sha256


class Upgrade(_Record):
    """A patch from an earlier release's base to this base, for visitors who have kept the earlier one."""

    from_sha256: Sha256
    from_bytes: ModelBytes
    from_parts: tuple[Piece, ...] = Field(min_length=1, strict=False)
    delivery: Delivery

    @model_validator(mode="after")
    def _sums_up(self) -> Upgrade:
        _require(self, "delivery.kind", self.delivery.kind, "patch")
        if len(self.from_parts) == 1:
            _require(self, "from_parts[0].sha256", self.from_parts[0].sha256, self.from_sha256)
        return _require(self, "from_bytes", self.from_bytes, sum(piece.bytes for piece in self.from_parts))


class Prompt(_Record):
    """What stands around a user's turn (docs/dispatch.md)."""

    system: str = Field(max_length=TOOLS_LENGTH_MAX)
    tools: str = Field(max_length=TOOLS_LENGTH_MAX)
    context_turns: int = Field(ge=0, le=64)

    @model_validator(mode="after")
    def _tools_are_a_list(self) -> Prompt:
        if self.tools and not _is_json_list(self.tools):
            raise ValueError("tools: must be empty or the text of a JSON list")
        return self


class Member(_Record):
    """One model of the family, as rebuilt, and how it gets there."""

    id: MemberId
    title: Line = Field(min_length=1)
    about: Line
    bytes: ModelBytes
    sha256: Sha256
    delivery: Delivery
    prompt: Prompt

    @model_validator(mode="after")
    def _whole_is_itself(self) -> Member:
        if self.delivery.kind == "whole":
            _require(self, "delivery.bytes", self.delivery.bytes, self.bytes)
            if len(self.delivery.parts) == 1:
                _require(self, "delivery.parts[0].sha256", self.delivery.parts[0].sha256, self.sha256)
        return self


class Lossy(_Record):
    """How a member was made different from its plain export, on purpose (docs/budget.md)."""

    mode: Literal["zero-residual", "rate-distortion"]
    gain: float = Field(ge=0, le=1000, description="how much of the adapter's change arrives; 1 is all")
    relative_error: float = Field(ge=0, le=1000, description="of the change, against its own size")
    budget_bytes: ModelBytes | None = Field(default=None, description="of the patch; absent if none was set")


class Router(Member):
    """The member that is asked who should answer."""

    lossy: Lossy | None = None


class Base(Member):
    """Candidate zero; every patch is against it."""

    max_new_tokens: int = Field(ge=1, le=65536)
    upgrades: tuple[Upgrade, ...] = Field(default=(), max_length=UPGRADES_MAX, strict=False)

    @model_validator(mode="after")
    def _stands_alone(self) -> Base:
        return _require(self, "delivery.kind", self.delivery.kind, "whole")

    @model_validator(mode="after")
    def _upgrades_are_worth_it(self) -> Base:
        seen = {self.sha256}
        for index, upgrade in enumerate(self.upgrades):
            field = f"upgrades[{index}]"
            if upgrade.from_sha256 in seen:
                found, allowed = upgrade.from_sha256, "no other upgrade's and not the base's own"
                raise ValueError(f"{field}.from_sha256: is {found!r}, must be {allowed}")
            if upgrade.delivery.bytes >= self.bytes:
                allowed = f"less than {self.bytes}, the whole base"
                raise ValueError(f"{field}.delivery.bytes: is {upgrade.delivery.bytes}, must be {allowed}")
            seen.add(upgrade.from_sha256)
        return self


class Specialist(Member):
    """Candidate i is `specialists[i-1]`."""

    max_new_tokens: int = Field(ge=1, le=65536)
    changed_codes: float = Field(ge=0, le=1, description="share of the base's codes that differ, for people")
    lossy: Lossy | None = None


class Container(_Record):
    """What every member's file is."""

    tag: Tag
    generation: Literal[2, 3]


class Module(_Record):
    """One WebAssembly file."""

    path: str
    bytes: int = Field(ge=8, le=PART_BYTES_MAX)
    sha256: Sha256

    @model_validator(mode="after")
    def _name_is_hash(self) -> Module:
        return _require(self, "path", self.path, engine_path(self.sha256))


class Engine(Module):
    """The module that rebuilds and runs the members, and its faster twin for browsers with relaxed SIMD."""

    abi: int = Field(ge=1, le=2**32 - 1)
    relaxed: Module | None = None

    @property
    def modules(self) -> tuple[Module, ...]:
        """The files of which a visitor takes one."""
        return (self, self.relaxed) if self.relaxed else (self,)


class App(_Record):
    """The folder of the page's modules."""

    path: str
    sha256: Sha256 = Field(description="over the page's sources (docs/publish.md)")

    @model_validator(mode="after")
    def _name_is_hash(self) -> App:
        return _require(self, "path", self.path, app_path(self.sha256))


class Manifest(_Record):
    """The whole document."""

    format: Literal["saguaro-family"]
    version: Literal[1]
    name: MemberId
    title: Line = Field(min_length=1)
    release: Sha256 = Field(description="over the canonical JSON of everything else")
    container: Container
    numerics: Literal["exact", "fast"]
    engine: Engine
    app: App
    base: Base
    router: Router | None = None
    specialists: tuple[Specialist, ...] = Field(strict=False)
    examples: tuple[Line, ...] = Field(default=(), max_length=12, strict=False)

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Manifest:
        seen: set[str] = set()
        for member in self.members:
            if member.id in seen:
                raise ValueError(f"id: must be unique, {member.id!r} stands twice")
            seen.add(member.id)
        return self

    @property
    def members(self) -> tuple[Member, ...]:
        """Base, router if any, specialists in candidate order."""
        return (self.base, *([self.router] if self.router else []), *self.specialists)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every part that the release names, once each: the members' in their order, then the upgrades'."""
        deliveries = [member.delivery for member in self.members]
        deliveries += [upgrade.delivery for upgrade in self.base.upgrades]
        parts = {part.path: part for delivery in deliveries for part in delivery.parts}
        return tuple(parts.values())

    def member(self, member_id: str) -> Member:
        """The member of that id. Raises ManifestError."""
        for member in self.members:
            if member.id == member_id:
                return member
        known = ", ".join(member.id for member in self.members)
        raise ManifestError(refusal("family.json", "id", found=repr(member_id), allowed=f"one of {known}"))


def read_manifest(data: bytes, source: object = "family.json") -> Manifest:
    """Check untrusted bytes field by field, then the release hash. Raises ManifestError with one sentence."""
    document = _parse(data, source)
    for field, wanted in (("format", FORMAT), ("version", VERSION)):
        found = document.get(field)
        if type(found) is not type(wanted) or found != wanted:
            raise _error("manifest_version", source, field, _short(found), repr(wanted))
    try:
        manifest = Manifest.model_validate(document)
        release = release_of(document)
        is_canonical = canonical_json(document) + b"\n" == data
    except ValidationError as error:
        raise ManifestError(_sentence(source, error), code="manifest_invalid") from None
    except ValueError as error:
        raise ManifestError(f"{source}: {error} ({SPEC})", code="manifest_invalid") from None
    if manifest.release != release:
        allowed = f"{release[:12]}..., the hash of the rest; it was changed after it was packed"
        raise _error("manifest_damaged", source, "release", f"{manifest.release[:12]}...", allowed)
    if not is_canonical:
        raise _error(
            "manifest_damaged", source, "text", "written in another way", "canonical JSON and a line end"
        )
    return manifest


def write_manifest(fields: dict[str, Any]) -> bytes:
    """The file's bytes for these fields (all but `format`, `version`, `release`), proved to read back."""
    document = {"format": FORMAT, "version": VERSION, **fields}
    document["release"] = release_of(document)
    data = canonical_json(document) + b"\n"
    read_manifest(data)
    return data


def release_of(document: dict[str, Any]) -> str:
    """SHA-256 over everything in the document but `release`, unknown fields included."""
    return canonical_sha256({key: value for key, value in document.items() if key != "release"})


def schema_text() -> str:
    """The JSON Schema of the document, as docs/formats/family.schema.json holds it."""
    schema = Manifest.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _parse(data: bytes, source: object) -> dict[str, Any]:
    if len(data) > MANIFEST_BYTES_MAX:
        raise _error(
            "manifest_invalid", source, "size", f"{len(data)} bytes", f"at most {MANIFEST_BYTES_MAX} bytes"
        )
    document = load_json(data, source, error=ManifestError, code="manifest_damaged")
    if not isinstance(document, dict):
        raise _error("manifest_damaged", source, "document", _short(document), "one JSON object")
    if not _is_within(document, DEPTH_MAX):
        allowed = f"at most {DEPTH_MAX} levels deep"
        raise _error("manifest_damaged", source, "document", "nested too deeply", allowed)
    return document


def _is_within(value: Any, depth: int) -> bool:
    """Whether lists and objects go at most this deep."""
    if not isinstance(value, (dict, list)):
        return True
    items = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_within(item, depth - 1) for item in items)


def _error(code: str, source: object, field: str, found: str, allowed: str) -> ManifestError:
    sentence = refusal(source, field, found=found, allowed=allowed, spec=SPEC)
    return ManifestError(sentence, code=code)


def _is_json_list(text: str) -> bool:
    try:
        value = load_json(text.encode(), "tools")
    except (RefusedError, UnicodeEncodeError):
        return False
    return isinstance(value, list) and _is_within(value, DEPTH_MAX) and not text.startswith("\ufeff")


def _require(record: Checked, field: str, found: object, wanted: object) -> Checked:
    if found != wanted:
        raise ValueError(f"{field}: is {found!r}, must be {wanted!r}")
    return record


def _sentence(source: object, error: ValidationError) -> str:
    """The first thing that is wrong, as one sentence; the fields are checked in the order of the models."""
    first = error.errors(include_url=False)[0]
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
    if first["type"] == "missing":
        return f"{source}: {where}: is missing ({SPEC})"
    if first["type"] == "value_error":
        return f"{source}: {where + '.' if where else ''}{first['ctx']['error']} ({SPEC})"
    if first["type"] == "string_pattern_mismatch":
        allowed = f"text of the form {first['ctx']['pattern']}"
    else:
        allowed = re.sub(r"^\w+ should (be )?", "", first["msg"])
        allowed = re.sub(r"^have ", "one with ", allowed).replace("tuple", "list")
    return refusal(source, where, found=_short(first["input"]), allowed=allowed, spec=SPEC)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
