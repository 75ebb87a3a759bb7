"""What the declared tools of a member must be like, so that every call it writes can be held to them.

Owns: the refusals of `pack` that need the grammar of calls. Knows nothing of: patches, sites.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from builder.errors import FamilyError, GrammarError, refusal
from builder.family.family import Member
from builder.runtime.engine import Engine, EngineModel


def require_callable(base: bytes, members: Sequence[Member]) -> None:
    """Raise FamilyError for tools that a browser could not hold a member's calls to, or has no room to call.

    `base` is the base's container, whose tokenizer all members share. The router is only scored, so its tools
    are not looked at.
    """
    answering = [member for member in members if member.tools and member.max_new_tokens is not None]
    if not answering:
        return
    model = Engine().open(base, name=members[0].id)
    for member in answering:
        try:
            has_room = _has_room(model, member.tools, member.max_new_tokens or 0)
        except GrammarError as error:
            step = "leave it out of the tool list or say it with keywords of docs/grammar.md"
            raise FamilyError(f"{member.id}: {error}; {step}", code=error.code) from None
        if not has_room:
            allowed = "enough for the shortest call of a tool"
            sentence = refusal(member.id, "max_new_tokens", found=member.max_new_tokens, allowed=allowed)
            raise FamilyError(sentence, code="no_room")


def _has_room(model: EngineModel, tools: str, max_new_tokens: int) -> bool:
    """Whether an answer of so many ids can call a tool, and not only say that none fits."""
    grammar = model.grammar(tools)
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
