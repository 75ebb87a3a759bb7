"""Checking a family without exporting it: what would be refused, member by member.

Owns: `check_family`. Does not know: how findings are printed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from builder.cact.header import Header
from builder.cact.reader import read_container
from builder.errors import FamilyError, SaguaroError
from builder.family.adapter import read_adapter
from builder.family.export import Exporters, read_tokenizer
from builder.family.family import Family, Member


@dataclass(frozen=True)
class Finding:
    """What a look at one member gave: `problem` is a sentence, or None."""

    member: Member
    problem: SaguaroError | None


@dataclass(frozen=True)
class _Shape:
    """What must be the same in all members of a family."""

    header: Header
    tokenizer_sha256: str


def check_family(family: Family) -> list[Finding]:
    """One finding per member, in member order; a member that differs from the base in shape has a problem."""
    exporters = Exporters(family)
    findings, base = [], None
    for member in family.members:
        problem = None
        try:
            shape = _shape(family, exporters, member)
            if member.role == "base":
                base = shape
            elif base is not None:
                _compare(member, shape, base)
        except SaguaroError as error:
            problem = error
        findings.append(Finding(member, problem))
    return findings


def _shape(family: Family, exporters: Exporters, member: Member) -> _Shape:
    if member.cact is not None:
        container = read_container(member.cact)
        header, tokenizer = container.header, container.tokenizer_blob or b""
    else:
        adapter = read_adapter(member.adapter) if member.adapter else None
        if adapter is not None and adapter.is_empty:
            raise FamilyError(f"{adapter.path}: changes nothing; was it trained?", code="empty_adapter")
        exporter = exporters.of(member)
        exporter.check(adapter)
        header, tokenizer = exporter.header, read_tokenizer(family)
    return _Shape(dataclasses.replace(header, tensor_count=0), hashlib.sha256(tokenizer).hexdigest())


def _compare(member: Member, shape: _Shape, base: _Shape) -> None:
    """Refuse (other_geometry, other_tokenizer) a member that no patch from the base can lead to."""
    source = member.cact or member.checkpoint
    for name, value in vars(base.header).items():
        found = getattr(shape.header, name)
        if found != value:
            raise FamilyError(
                f"{source}: {name} is {found}, the base has {value}; all members share one geometry",
                code="other_geometry",
            )
    if shape.tokenizer_sha256 != base.tokenizer_sha256:
        raise FamilyError(f"{source}: has another tokenizer than the base", code="other_tokenizer")
