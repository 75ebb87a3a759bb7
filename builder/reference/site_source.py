"""A packed site as the dispatcher sees it: the manifest's family, and models that are opened when needed.

Owns: manifest to `Family`, the models that are open now, and the memory that they may take together.
Does not know: how a site is laid out (`builder.publish.site` does), prompts, terminals.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from builder.errors import MemberError
from builder.publish import manifest as published
from builder.publish.site import Site
from builder.reference.dispatcher import Family, Member
from builder.reference.prompts import PromptTemplate
from builder.runtime.interface import Model

OpenModel = Callable[[bytes, str], Model]
"""A container's bytes and its member's id -> the running model."""


class SiteSource:
    """Opens members of a site; when memory runs out, closes those unused for longest, but never the base."""

    def __init__(self, site: Site, open_model: OpenModel, memory_bytes_max: int) -> None:
        self._site, self._open_model, self._memory_bytes_max = site, open_model, memory_bytes_max
        self._models: OrderedDict[str, Model] = OrderedDict()

    def open(self, member_id: str) -> Model:
        """The member's model, rebuilt and proved.

        Raises `MemberError` (over_budget), and what reading, rebuilding and opening raise (`ManifestError`,
        `PatchError`, `ContainerError`).
        """
        if member_id not in self._models:
            data = self._site.member_bytes(member_id)
            self._make_room(member_id, len(data))
            self._models[member_id] = self._open_model(data, member_id)
        self._models.move_to_end(member_id)
        return self._models[member_id]

    def _make_room(self, member_id: str, needed_bytes: int) -> None:
        base_id = self._site.manifest.base.id
        closable = [open_id for open_id in self._models if open_id != base_id]
        while self._held_bytes() + needed_bytes > self._memory_bytes_max:
            if not closable:
                if member_id == base_id:
                    return  # without its base a family cannot answer at all
                needed, limit = needed_bytes / 1e6, self._memory_bytes_max / 1e6
                sentence = (
                    f"{member_id}: needs {needed:.1f} MB beside the base, but all may take {limit:.1f} MB"
                )
                raise MemberError(f"{sentence}; raise --memory", code="over_budget")
            del self._models[closable.pop(0)]

    def _held_bytes(self) -> int:
        return sum(model.memory_bytes for model in self._models.values())


def family_of(manifest: published.Manifest) -> Family:
    """What the dispatcher must know of the family."""
    return Family(
        base=_member(manifest.base, manifest.base.max_new_tokens),
        specialists=tuple(_member(member, member.max_new_tokens) for member in manifest.specialists),
        router=_member(manifest.router) if manifest.router else None,
        numerics=manifest.numerics,
    )


def _member(member: published.Member, *max_new_tokens: int) -> Member:
    prompt = member.prompt
    return Member(
        member.id, PromptTemplate(prompt.system, prompt.tools, prompt.context_turns), *max_new_tokens
    )
