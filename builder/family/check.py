"""Checking a family without exporting it: what would be refused, member by member.

Owns: `check_family`, and `Shape`, which all members must share. Does not know: how findings are printed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from builder.cact.header import Header
from builder.cact.reader import Container, read_container
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
class Shape:
    """What must be the same in all members; the number of tensors need not, since heads may be dropped."""

    header: Header
    tokenizer_sha256: str

    @classmethod
    def of(cls, container: Container) -> Shape:
        """The shape of a finished `.cact`."""
        return _shape_of(container.header, container.tokenizer_blob or b"")


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
                require_same_shape(str(member.cact or member.checkpoint), shape, base)
        except SaguaroError as error:
            problem = error
        findings.append(Finding(member, problem))
    return findings


def require_same_shape(subject: str, shape: Shape, base: Shape) -> None:
    """Refuse a member that would rebuild from the base and then not work with it.

    Raises `FamilyError` (other_geometry, other_tokenizer).
    """
    for name, value in vars(base.header).items():
        found = getattr(shape.header, name)
        if found != value:
            form = "#010x" if name == "tag" else ""
            difference = f"is {found:{form}}, the base has {value:{form}}"
            sentence = f"{subject}: {name} {difference}; all members share one geometry"
            raise FamilyError(sentence, code="other_geometry")
    if shape.tokenizer_sha256 != base.tokenizer_sha256:
        raise FamilyError(f"{subject}: has another tokenizer than the base", code="other_tokenizer")


def _shape(family: Family, exporters: Exporters, member: Member) -> Shape:
    if member.cact is not None:
        return Shape.of(read_container(member.cact))
    adapter = read_adapter(member.adapter) if member.adapter else None
    if adapter is not None and adapter.is_empty:
        raise FamilyError(f"{adapter.path}: changes nothing; was it trained?", code="empty_adapter")
    exporter = exporters.of(member)
    exporter.check(adapter)
    return _shape_of(exporter.header, read_tokenizer(family))


def _shape_of(header: Header, tokenizer: bytes) -> Shape:
    return Shape(dataclasses.replace(header, tensor_count=0), hashlib.sha256(tokenizer).hexdigest())
