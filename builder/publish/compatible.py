"""What a member must share with the base, and what it must not.

Owns: the refusals of `pack` that need a look into the containers. Knows nothing of: patches, sites.
Source: docs/publish.md, "What pack refuses".
"""

from __future__ import annotations

from collections.abc import Mapping

from builder.cact.layout import Kind
from builder.cact.reader import Container
from builder.errors import FamilyError, refusal
from builder.family.check import Shape, require_same_shape


def require_compatible(base: Container, member: Container, member_id: str) -> None:
    """Raise FamilyError unless tag, geometry, tokenizer and bit widths of shared tensors are the base's."""
    require_same_shape(member_id, Shape.of(member), Shape.of(base))
    for record in member.records:
        known = base.record(record.name) if record.name in base else None
        if known is not None and (known.kind, known.bits) != (record.kind, record.bits):
            found, allowed = _form(record.kind, record.bits), _form(known.kind, known.bits)
            step = "export all members with one set of bit widths"
            raise _refused(member_id, f"tensor {record.name}", found, allowed, step, code="other_bits")


def require_different(hashes: Mapping[str, str], base_id: str, specialist_ids: list[str]) -> None:
    """Raise FamilyError for a specialist that is the base, or another specialist, byte for byte."""
    seen = {hashes[base_id]: base_id}
    for member_id in specialist_ids:
        other = seen.setdefault(hashes[member_id], member_id)
        if other != member_id:
            found = f"byte for byte {other}"
            raise _refused(
                member_id, "model", found, "a model of its own", f"leave {member_id} out of the family"
            )


def require_changed(member_id: str, changed_codes: float) -> None:
    """Raise FamilyError for a specialist without a changed code: rounding has undone the fine-tune.

    It is not the base (`require_different`), so norms, unquantised tensors or header fields differ.
    """
    if changed_codes == 0:
        found = "all equal to the base's, only norms, unquantised tensors or header fields differ"
        step = "rounding has undone the fine-tune; train it longer or with a larger step"
        raise _refused(member_id, "codes", found, "different somewhere", step)


def _form(kind: Kind, bits: int) -> str:
    return f"{bits} bits" if kind is Kind.CQ else kind.name


def _refused(
    member_id: str, field: str, found: str, allowed: str, next_step: str, code: str = "same_model"
) -> FamilyError:
    return FamilyError(
        refusal(member_id, field, found=found, allowed=allowed, next_step=next_step), code=code
    )
