from __future__ import annotations

from types import SimpleNamespace

import pytest

from builder.errors import ManifestError, MemberError
from builder.reference.dispatcher import Member
from builder.reference.prompts import PromptTemplate
from builder.reference.site_source import SiteSource, family_of

MB = 10**6


class FakeSite:
    """Members of 10 MB; `broken` ones cannot be rebuilt."""

    manifest = SimpleNamespace(base=SimpleNamespace(id="base"))

    def __init__(self, *broken: str) -> None:
        self.broken, self.rebuilt = broken, []

    def member_bytes(self, member_id: str) -> bytes:
        if member_id in self.broken:
            raise ManifestError(f"{member_id}: is damaged", code="part_hash_mismatch")
        self.rebuilt.append(member_id)
        return bytes(10 * MB)


def source(budget_mb: int, site: FakeSite) -> SiteSource:
    return SiteSource(
        site, lambda data, member_id: SimpleNamespace(id=member_id, memory_bytes=len(data)), budget_mb * MB
    )


def test_a_member_is_rebuilt_once_while_it_stays_open():
    site = FakeSite()
    models = source(100, site)
    assert models.open("home") is models.open("home")
    assert site.rebuilt == ["home"]


def test_the_member_unused_for_longest_makes_room_but_never_the_base():
    site = FakeSite()
    models = source(35, site)
    for member_id in ("base", "home", "media", "home", "kitchen", "home", "base", "media"):
        assert models.open(member_id).id == member_id
    assert site.rebuilt == ["base", "home", "media", "kitchen", "media"]


def test_a_member_that_cannot_fit_beside_the_base_is_over_budget_and_closes_nothing_in_vain():
    models = source(15, FakeSite())
    base = models.open("base")
    with pytest.raises(
        MemberError, match=r"home: needs 10\.0 MB beside the base, but all may take 15\.0 MB"
    ) as caught:
        models.open("home")
    assert caught.value.code == "over_budget"
    assert models.open("base") is base


def test_the_base_opens_even_without_room():
    assert source(1, FakeSite()).open("base").id == "base"


def test_damage_is_reported_as_it_is_and_the_next_try_may_work():
    site = FakeSite("home")
    models = source(100, site)
    with pytest.raises(ManifestError, match="home: is damaged"):
        models.open("home")
    site.broken = ()
    assert models.open("home").id == "home"


def member(member_id, **fields):
    prompt = SimpleNamespace(system="s", tools="[]", context_turns=3)
    return SimpleNamespace(id=member_id, prompt=prompt, **fields)


def test_a_manifest_names_the_candidates_in_its_order():
    manifest = SimpleNamespace(
        base=member("base", max_new_tokens=7),
        router=member("router"),
        specialists=(member("b", max_new_tokens=8), member("a", max_new_tokens=9)),
        numerics="exact",
    )
    family = family_of(manifest)
    prompt = PromptTemplate("s", "[]", 3)
    assert family.candidates == (Member("base", prompt, 7), Member("b", prompt, 8), Member("a", prompt, 9))
    assert family.router is not None
    assert family.router.prompt == prompt
    manifest.router = None
    assert family_of(manifest).router is None
