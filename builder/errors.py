"""Every error that Saguaro raises on purpose.

    SaguaroError                 one sentence for a person; `code` for programs
    +-- UsageError               the command was called wrongly (exit 2)
    +-- MissingExtraError        an optional dependency is not installed (exit 2)
    +-- RefusedError             the input cannot be used (exit 1)
        +-- ContainerError       a `.cact` file breaks docs/formats/cact.md
        +-- PatchError           a patch breaks docs/formats/patch.md, or is for another base
        +-- ManifestError        a `family.json` breaks docs/formats/manifest.md
        +-- FamilyError          a `family.toml`, checkpoint or adapter cannot become a family
        +-- PackageError         an expert package cannot be used
        +-- GrammarError         declared tools cannot be held to while a call is written (docs/grammar.md)
        +-- SessionError         a model was asked for something it cannot do (context full, bad token)
        +-- MemberError          a family's member cannot be had; `code` is the route record's reason

A message names the file, the field, what was found, what is allowed and the next step. `code` is one word per
cause; a cause that C or JavaScript can meet too has the same code there (`engine/include/sg_status.h`).
"""

from __future__ import annotations

from collections.abc import Sequence

NAMES_SHOWN_MAX = 5
NAME_LENGTH_MAX = 100


class SaguaroError(Exception):
    """Base of every deliberate error; `str(error)` is one sentence that a user can act on."""

    exit_code = 1

    def __init__(self, message: str, *, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class UsageError(SaguaroError):
    """The command line, or the arguments of a public function, make no sense."""

    exit_code = 2

    def __init__(self, message: str, *, code: str = "usage") -> None:
        super().__init__(message, code=code)


class MissingExtraError(UsageError):
    """An optional dependency is needed for this and is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs an optional part; install it with: pip install 'saguaro[{extra}]'",
            code="missing_extra",
        )


class RefusedError(SaguaroError):
    """The input was read and cannot be used."""


class ContainerError(RefusedError):
    """A `.cact` file breaks its format."""


class PatchError(RefusedError):
    """A patch breaks its format, is damaged, or belongs to another base or target."""


class ManifestError(RefusedError):
    """A `family.json` breaks its format or names what is not there."""


class FamilyError(RefusedError):
    """A `family.toml`, checkpoint or adapter cannot become a family."""


class PackageError(RefusedError):
    """An expert package cannot be used."""


class GrammarError(RefusedError):
    """Declared tools cannot be compiled into a grammar of calls."""


class SessionError(RefusedError):
    """A running model was asked for something it cannot do."""


class MemberError(RefusedError):
    """A member cannot answer: `member_unavailable`, `over_budget` or `worker_lost` (docs/dispatch.md)."""

    def __init__(self, message: str, *, code: str = "member_unavailable") -> None:
        super().__init__(message, code=code)


def refusal(
    subject: object,
    field: str,
    *,
    found: object,
    allowed: str,
    offset: int | None = None,
    spec: str | None = None,
    next_step: str | None = None,
) -> str:
    """The house form: `<file>: <field> at byte <n>: is <found>, must be <rule> (<spec>); <next step>`."""
    where = f" at byte {offset}" if offset is not None else ""
    source = f" ({spec})" if spec else ""
    step = f"; {next_step}" if next_step else ""
    return f"{subject}: {field}{where}: is {found}, must be {allowed}{source}{step}"


def utf8_of(subject: str, text: str) -> bytes:
    """The text's bytes. Raises `SessionError` (bad_utf8) for lone surrogates."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"a lone surrogate at {error.start}"
        message = refusal(subject, "character", found=found, allowed="Unicode")
        raise SessionError(message, code="bad_utf8") from None


def plain_text(text: str) -> str:
    """The text on one line, with what could steer a terminal escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plain_name(name: str) -> str:
    """A name out of a stranger's file, `plain_text`, and cut if it is long."""
    shown = plain_text(name)
    return shown if len(shown) <= NAME_LENGTH_MAX else f"{shown[: NAME_LENGTH_MAX - 3]}..."


def some_names(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    shown = ", ".join(plain_name(name) for name in names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
