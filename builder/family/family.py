"""A family: its members, where their weights come from and how they are prompted.

Owns: `Family`, `Member`, `load_family`; tools are resolved to the text that stands in the prompt.
Does not know: tensors, the web.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from builder.errors import FamilyError, UsageError, plain_name, refusal
from builder.family.settings import (
    FILE_BYTES_MAX,
    TEXT_LENGTH_MAX,
    BaseTable,
    FamilySettings,
    FamilyTable,
    RouterTable,
    SpecialistTable,
    ToolFile,
    read_settings,
)
from builder.files import load_json, read_regular

Role = Literal["base", "router", "specialist"]


@dataclass(frozen=True)
class Member:
    """One model of the family. Either `cact` is set, or `checkpoint` with an optional `adapter`."""

    id: str
    role: Role
    title: str
    about: str
    system: str
    tools: str
    """The tool list exactly as it stands in the prompt (compact JSON), or empty."""
    tools_source: str
    """Where it was written down, for messages: a file and its key, or `tools`."""
    context_turns: int
    """How many earlier user turns the prompt shows."""
    max_new_tokens: int | None
    """None for the router, which is only scored."""
    cact: Path | None
    checkpoint: Path | None
    adapter: Path | None
    budget: str | None = None
    """A size or `patch-friendly`: the member is changed so that its patch is small (docs/budget.md)."""


@dataclass(frozen=True)
class Family:
    """A checked `family.toml`. Candidate 0 is the base, candidate i is `specialists[i - 1]`."""

    path: Path
    settings: FamilyTable
    tokenizer: Path | None
    base: Member
    router: Member | None
    specialists: tuple[Member, ...]

    @property
    def name(self) -> str:
        """A short name, as a member's id is spelt."""
        return self.settings.name

    @property
    def title(self) -> str:
        """A name for people."""
        return self.settings.title

    @property
    def examples(self) -> tuple[str, ...]:
        """Lines that a visitor may try first."""
        return tuple(self.settings.examples)

    @property
    def sources(self) -> tuple[Path, ...]:
        """Every model file that the family is made from."""
        paths = [path for member in self.members for path in (member.cact, member.checkpoint, member.adapter)]
        return tuple(path for path in (*paths, self.tokenizer) if path is not None)

    @property
    def members(self) -> tuple[Member, ...]:
        """Base, router (if any), specialists in order."""
        router = (self.router,) if self.router else ()
        return (self.base, *router, *self.specialists)

    def member(self, member_id: str) -> Member:
        """The member with this id. Raises `UsageError` (unknown_member)."""
        for member in self.members:
            if member.id == member_id:
                return member
        known = ", ".join(member.id for member in self.members)
        raise UsageError(f"{self.path}: has no member {member_id!r}; it has {known}", code="unknown_member")


def load_family(path: str | Path) -> Family:
    """Read a `family.toml` and the tool files that it names; models are not opened.

    Raises `FamilyError`.
    """
    path = Path(path)
    settings = read_settings(path)
    specialists = tuple(_member(path, settings, table.id, table) for table in settings.specialists)
    router = _member(path, settings, "router", settings.router) if settings.router else None
    tokenizer = settings.family.tokenizer
    return Family(
        path=path,
        settings=settings.family,
        tokenizer=None if tokenizer is None else path.parent / tokenizer,
        base=_member(path, settings, "base", settings.base),
        router=router,
        specialists=specialists,
    )


def compact_json(value: object) -> str:
    """The one form in which JSON stands in a prompt: no spaces, order kept, text unescaped.

    Raises `TypeError`, `ValueError` or `RecursionError` for what is not JSON.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def router_tools(specialists: list[SpecialistTable]) -> str:
    """The router's tool list: one tool per specialist, named by its id and described by its `about`."""
    return compact_json([{"name": table.id, "description": table.about} for table in specialists])


def _member(
    path: Path, settings: FamilySettings, member_id: str, table: BaseTable | RouterTable | SpecialistTable
) -> Member:
    is_router = isinstance(table, RouterTable)
    tools = (
        router_tools(settings.specialists)
        if isinstance(table, RouterTable)
        else _tools(path, member_id, table.tools)
    )
    if len(tools) > TEXT_LENGTH_MAX:
        allowed = f"at most {TEXT_LENGTH_MAX} characters"
        sentence = refusal(path, f"{member_id}.tools", found=f"{len(tools)} characters", allowed=allowed)
        raise FamilyError(sentence, code="bad_family")
    role: Role = "router" if is_router else "specialist" if isinstance(table, SpecialistTable) else "base"
    return Member(
        id=member_id,
        role=role,
        title=table.title or member_id.capitalize(),
        about="" if isinstance(table, RouterTable) else table.about,
        system=table.system,
        tools=tools,
        tools_source="tools" if isinstance(table, RouterTable) else _tools_source(table.tools),
        context_turns=table.context_turns,
        max_new_tokens=None if isinstance(table, RouterTable) else table.max_new_tokens,
        cact=_beside(path, table.cact),
        checkpoint=_beside(path, _checkpoint(path, settings, member_id, table)),
        adapter=_beside(path, table.adapter),
        budget=None if isinstance(table, BaseTable) else table.budget,
    )


def _beside(path: Path, source: str | None) -> Path | None:
    return None if source is None else path.parent / source


def _checkpoint(
    path: Path, settings: FamilySettings, member_id: str, table: BaseTable | RouterTable | SpecialistTable
) -> str | None:
    """An adapter without a checkpoint of its own stands on the base's."""
    if table.checkpoint or table.adapter is None:
        return table.checkpoint
    if settings.base.checkpoint is None:
        raise FamilyError(
            f"{path}: {member_id}.adapter: has nothing to merge into, since the base is a finished .cact; "
            f"name the checkpoint that it was trained on ({member_id}.checkpoint)",
            code="bad_family",
        )
    return settings.base.checkpoint


def _tools_source(tools: ToolFile | list[dict[str, Any]] | None) -> str:
    return plain_name(f"{tools.file} {tools.key}".strip()) if isinstance(tools, ToolFile) else "tools"


def _tools(path: Path, member_id: str, tools: ToolFile | list[dict[str, Any]] | None) -> str:
    if tools is None:
        return ""
    if isinstance(tools, ToolFile):
        value, where = _tool_file(path.parent / tools.file, tools.key), _tools_source(tools)
    else:
        value, where = tools, f"{member_id}.tools"
    if not isinstance(value, list) or not value:
        raise FamilyError(f"{path}: {where}: must be a list of tools, with one at least", code="bad_family")
    for index, tool in enumerate(value):
        if not (isinstance(tool, dict) and isinstance(tool.get("name"), str) and tool["name"]):
            raise FamilyError(f"{path}: {where}[{index}]: must be a tool with a name", code="bad_family")
    try:
        text = compact_json(value)
        text.encode("utf-8")
    except (TypeError, ValueError) as error:  # TOML has dates and NaN, Python's JSON has lone surrogates.
        raise FamilyError(f"{path}: {where}: is not JSON: {error}", code="bad_family") from None
    except RecursionError:
        raise FamilyError(f"{path}: {where}: is nested too deeply", code="bad_family") from None
    return text


def _tool_file(path: Path, key: str) -> object:
    data = read_regular(path, FILE_BYTES_MAX, error=FamilyError)
    value: object = load_json(data, path, error=FamilyError, code="bad_family")
    for part in filter(None, key.split(".")):
        if not (isinstance(value, dict) and part in value):
            raise FamilyError(f"{path}: has no key {key!r}", code="bad_family")
        value = value[part]
    return value
