"""A family: its members, where their weights come from and how they are prompted.

Owns: `Family`, `Member`, `load_family`; tools are resolved to the text that stands in the prompt.
Does not know: tensors, the web.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from builder.errors import FamilyError, UsageError
from builder.family.settings import (
    BaseTable,
    FamilySettings,
    FamilyTable,
    RouterTable,
    SpecialistTable,
    ToolFile,
    read_settings,
)

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
    context_turns: int
    """How many earlier user turns the prompt shows."""
    max_new_tokens: int | None
    """None for the router, which is only scored."""
    cact: Path | None
    checkpoint: Path | None
    adapter: Path | None


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
    """The one form in which JSON stands in a prompt: no spaces, order kept, text unescaped."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def router_tools(specialists: list[SpecialistTable]) -> str:
    """The router's tool list: one tool per specialist, named by its id and described by its `about`."""
    return compact_json([{"name": table.id, "description": table.about} for table in specialists])


def _member(
    path: Path, settings: FamilySettings, member_id: str, table: BaseTable | RouterTable | SpecialistTable
) -> Member:
    is_router = isinstance(table, RouterTable)
    role: Role = "router" if is_router else "specialist" if isinstance(table, SpecialistTable) else "base"
    return Member(
        id=member_id,
        role=role,
        title=table.title or member_id.capitalize(),
        about="" if isinstance(table, RouterTable) else table.about,
        system=table.system,
        tools=(
            router_tools(settings.specialists)
            if isinstance(table, RouterTable)
            else _tools(path, member_id, table.tools)
        ),
        context_turns=table.context_turns,
        max_new_tokens=None if isinstance(table, RouterTable) else table.max_new_tokens,
        cact=_beside(path, table.cact),
        checkpoint=_beside(path, _checkpoint(path, settings, member_id, table)),
        adapter=_beside(path, table.adapter),
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


def _tools(path: Path, member_id: str, tools: ToolFile | list[dict[str, Any]] | None) -> str:
    if tools is None:
        return ""
    if isinstance(tools, ToolFile):
        value, where = _tool_file(path.parent / tools.file, tools.key), f"{tools.file} {tools.key}".strip()
    else:
        value, where = tools, f"{member_id}.tools"
    if not isinstance(value, list) or not value:
        raise FamilyError(f"{path}: {where}: must be a list of tools, with one at least", code="bad_family")
    for index, tool in enumerate(value):
        if not (isinstance(tool, dict) and isinstance(tool.get("name"), str) and tool["name"]):
            raise FamilyError(f"{path}: {where}[{index}]: must be a tool with a name", code="bad_family")
    try:
        json.dumps(value, allow_nan=False)
        text = compact_json(value)
        text.encode("utf-8")
    except (TypeError, ValueError) as error:  # TOML has dates, Python's JSON has NaN and lone surrogates.
        raise FamilyError(f"{path}: {where}: is not JSON: {error}", code="bad_family") from None
    return text


def _tool_file(path: Path, key: str) -> object:
    try:
        value: object = json.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise FamilyError(f"{path}: cannot be read: {reason}", code="unreadable") from error
    except (ValueError, RecursionError) as error:
        raise FamilyError(f"{path}: is not JSON: {error}", code="bad_family") from None
    for part in filter(None, key.split(".")):
        if not (isinstance(value, dict) and part in value):
            raise FamilyError(f"{path}: has no key {key!r}", code="bad_family")
        value = value[part]
    return value
