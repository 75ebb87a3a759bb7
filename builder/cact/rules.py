"""How a broken rule of docs/formats/cact.md is told: one sentence and one code.

Owns: the form of every `ContainerError` of this room. Does not know: the rules themselves.
"""

from __future__ import annotations

from builder.errors import ContainerError, refusal

SPEC = "docs/formats/cact.md"


def broken(
    rule: int,
    code: str,
    subject: str,
    field: str,
    *,
    found: object,
    allowed: str,
    offset: int | None = None,
    next_step: str | None = None,
) -> ContainerError:
    """The error for a broken rule; `code` is a status of engine/include/sg_status.h in lower case."""
    spec = f"{SPEC} rule {rule}"
    text = refusal(
        subject, field, found=found, allowed=allowed, offset=offset, spec=spec, next_step=next_step
    )
    return ContainerError(text, code=code)


def cut_off(rule: int, subject: str, field: str, *, byte_count: int, needed: int) -> ContainerError:
    """The error for a file that ends inside `field`, which needs `needed` bytes from the file's start."""
    return broken(
        rule,
        "cact_truncated",
        subject,
        field,
        found=f"cut off after {byte_count} bytes",
        allowed=f"{needed} bytes or more",
        offset=byte_count,
        next_step="fetch or write the file again",
    )
