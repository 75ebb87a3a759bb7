"""What the declared tools of a member must be like, so that every call it writes can be held to them.

Owns: the refusals of `pack` and `family check` that need the grammar of calls.
Knows nothing of: patches, sites.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from builder.errors import FamilyError, GrammarError
from builder.family.family import Member
from builder.family.settings import NEW_TOKENS_MAX
from builder.runtime.engine import Engine, EngineGrammar, EngineModel


def require_callable(base: bytes, members: Sequence[Member]) -> None:
    """Raise FamilyError for tools that a browser could not hold a member's calls to, or has no room to call.

    `base` is the base's container, whose tokenizer all members share.
    """
    for member, problem in call_problems(base, answering(members)):
        raise FamilyError(f"{member.id}: {problem}", code=problem.code)


def answering(members: Sequence[Member]) -> list[Member]:
    """The members that write calls: the router is only scored, so its tools are not looked at."""
    return [member for member in members if member.tools and member.max_new_tokens is not None]


def call_problems(base: bytes, members: Sequence[Member]) -> Iterator[tuple[Member, FamilyError]]:
    """Each answering member whose calls cannot be held to its tools, and why; see require_callable."""
    model: EngineModel | None = None
    for member in members:
        model = model or Engine().open(base, name="base")
        try:
            grammar = model.grammar(member.tools)
        except GrammarError as error:
            yield member, FamilyError(_sentence(member, error), code=error.code)
            continue
        if not _has_room(model, grammar, member.max_new_tokens or 0):
            yield member, FamilyError(_room_sentence(model, grammar, member), code="no_room")


def _sentence(member: Member, error: GrammarError) -> str:
    """What the engine says, behind the place that the tools were written down in."""
    reason = str(error).removeprefix("tools: ")
    path = reason.partition(": ")[0]
    names = [tool["name"] for tool in json.loads(member.tools)]
    places = [i for i, name in enumerate(names) if reason.startswith((f"{name}/", f"{name}: "))]
    if error.code == "grammar_bad_schema" and len(places) > 1 and path == f"{names[places[1]]}/name":
        return f"{member.tools_source}[{places[1]}]: {path}: a tool of this name stands before it; rename one"
    is_keyword = not path.endswith("/properties/pattern")
    if error.code == "grammar_unsupported" and path.endswith("/pattern") and is_keyword:
        reason = f"{path}: is no regular expression of the subset that can be enforced"
    place = f"[{places[0]}]" if len(places) == 1 else ""
    step = "leave it out of the tool list or say it with keywords of docs/grammar.md"
    return f"{member.tools_source}{place}: {reason}; {step}"


def _room_sentence(model: EngineModel, grammar: EngineGrammar, member: Member) -> str:
    """The smallest limit that would do, or that none does."""
    limits = range(1, NEW_TOKENS_MAX + 1)
    enough = bisect_left(limits, True, key=lambda limit: _has_room(model, grammar, limit))
    if enough == len(limits):
        return f"{member.tools_source}: the shortest call needs more than {NEW_TOKENS_MAX} tokens"
    allowed = f"at least {limits[enough]}, enough for the shortest call of a tool"
    return f"max_new_tokens: is {member.max_new_tokens}, must be {allowed}"


def _has_room(model: EngineModel, grammar: EngineGrammar, max_new_tokens: int) -> bool:
    """Whether an answer of so many ids can call a tool, and not only say that none fits."""
    grammar.reset()
    marker = model.info.tool_call_open_id or 0
    if not grammar.allowed(max_new_tokens)[marker]:
        return False
    grammar.accept(marker)
    texts = {int(i): model.decode([int(i)]) for i in np.flatnonzero(grammar.allowed(max_new_tokens - 1))}
    if any(text.startswith("[{") for text in texts.values()):
        return True
    bracket = next((i for i, text in texts.items() if text == "["), None)
    if bracket is None:
        return False
    grammar.accept(bracket)
    behind = np.flatnonzero(grammar.allowed(max_new_tokens - 2))
    return any(model.decode([int(i)]).startswith("{") for i in behind)
