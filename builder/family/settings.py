"""`family.toml` as it is written: every key, its type and its default (docs/family.md).

Owns: the shape of the file and the sentences for what breaks it. Does not know: checkpoints, containers.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from builder.errors import FamilyError, plain_name, plain_text
from builder.family.budget.size import check_budget
from builder.files import read_regular

MEMBER_ID = r"[a-z][a-z0-9_-]{0,31}"
"""Of a family's or a member's id, here and in the manifest (docs/formats/manifest.md)."""
RESERVED_IDS = ("base", "router")
UNION_STEPS = ("ToolFile", "list[dict[str,any]]")

FILE_BYTES_MAX = 4 * 1024 * 1024
"""Of a `family.toml` or a tool file: many times what a manifest could hold."""
TEXT_LENGTH_MAX = 256 * 1024
"""Characters of a member's system text or tool list, as in the manifest."""

NEW_TOKENS_MAX = 65536
"""The largest length limit of an answer."""

LINE = r"^[^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]*$"
Line = Annotated[str, Field(pattern=LINE, max_length=200)]
"""Text for people, here and in the manifest: one line, no control characters, none that turn the direction of
the text around them."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


BudgetText = Annotated[str, AfterValidator(check_budget)]
"""What the member's patch may cost, for which the member is changed (docs/budget.md)."""


class FamilyTable(_Table):
    """`[family]`: what all members share."""

    name: Annotated[str, Field(pattern=f"^{MEMBER_ID}$")]
    title: Annotated[Line, Field(min_length=1)]
    tokenizer: str | None = None
    heads: Literal["keep", "drop-confidence"] = "drop-confidence"
    layers: Annotated[int, Field(ge=2, le=64)] | None = None
    kv_window: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    kv_bits: Annotated[int, Field(ge=1, le=32)] | None = None
    unused_tensors: Literal["refuse", "drop"] = "refuse"
    examples: Annotated[list[Line], Field(max_length=12)] = []
    """Lines that the page offers to a visitor who has not typed anything yet."""


class ToolFile(_Table):
    """`tools = {file = "tools.json", key = "tools.home"}`."""

    file: str
    key: str = ""


class _ModelTable(_Table):
    cact: str | None = None
    checkpoint: str | None = None
    adapter: str | None = None
    title: Line = ""
    system: Annotated[str, Field(max_length=TEXT_LENGTH_MAX)] = ""

    @model_validator(mode="after")
    def _one_source(self) -> _ModelTable:
        if self.cact is not None and (self.checkpoint is not None or self.adapter is not None):
            raise ValueError("has a cact and a checkpoint or adapter; name one source")
        if self.cact is None and self.checkpoint is None and self.adapter is None:
            raise ValueError("names no model; give it a cact, a checkpoint or an adapter")
        return self


class _AnsweringTable(_ModelTable):
    about: Line = ""
    tools: ToolFile | list[dict[str, Any]] | None = None
    context_turns: Annotated[int, Field(ge=0, le=64)] = 0
    max_new_tokens: Annotated[int, Field(ge=1, le=NEW_TOKENS_MAX)] = 128


class BaseTable(_AnsweringTable):
    """`[base]`."""


class RouterTable(_ModelTable):
    """`[router]`; its tools are the specialists."""

    budget: BudgetText | None = None
    context_turns: Annotated[int, Field(ge=0, le=64)] = 4


class SpecialistTable(_AnsweringTable):
    """One `[[specialists]]`."""

    id: Annotated[str, Field(pattern=f"^{MEMBER_ID}$")]
    about: Annotated[Line, Field(min_length=1)]
    budget: BudgetText | None = None


class FamilySettings(_Table):
    """The whole file."""

    family: FamilyTable
    base: BaseTable
    router: RouterTable | None = None
    specialists: list[SpecialistTable] = []

    @model_validator(mode="after")
    def _unique_ids(self) -> FamilySettings:
        ids = [*RESERVED_IDS, *(specialist.id for specialist in self.specialists)]
        for member in ids:
            if ids.count(member) > 1:
                raise ValueError(f"has the id {member!r} twice; base and router are taken")
        return self


def read_settings(path: Path) -> FamilySettings:
    """Read and check a `family.toml`. Raises `FamilyError` (as `read_regular`, and bad_family)."""
    data = read_regular(path, FILE_BYTES_MAX, error=FamilyError)
    try:
        document = tomllib.loads(data.decode("utf-8-sig"))
    except ValueError as error:  # Not UTF-8, not TOML, or a number of thousands of digits.
        raise FamilyError(f"{path}: is not TOML: {plain_text(str(error))}", code="bad_family") from None
    except RecursionError:
        raise FamilyError(f"{path}: is not TOML: nested too deeply", code="bad_family") from None
    try:
        return FamilySettings.model_validate(document)
    except ValidationError as error:
        raise FamilyError(f"{path}: {_sentence(error)}", code="bad_family") from None


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, as `specialists.0.about: ...`."""
    first = error.errors(include_url=False)[0]
    # `tools` may be two things, and each stands in the path by its type's name.
    steps = [str(part) for part in first["loc"] if part not in UNION_STEPS]
    where = plain_name(".".join(steps)) or "file"
    if first["type"] == "extra_forbidden":
        return f"{where}: is no key of family.toml; see docs/family.md for all keys"
    if where.endswith(".tools"):
        return f'{where}: must be a list of tools or {{ file = "tools.json", key = "a.b" }}'
    reason = first["msg"].removeprefix("Value error, ")
    return f"{where}: {reason[0].lower()}{reason[1:]}"
