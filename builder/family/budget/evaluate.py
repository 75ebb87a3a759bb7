"""A publisher's evaluation set: does the budgeted member answer as the plain one does?

Owns: reading the set (docs/budget.md, "The evaluation set"), and the comparison by the PyTorch reference,
which is imported only when there is something to compare. Does not know: budgets, how codes were chosen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from builder.errors import FamilyError, plain_name
from builder.family.family import Member, compact_json
from builder.files import load_json, read_regular

if TYPE_CHECKING:
    from builder.reference.prompts import PromptTemplate
    from builder.reference.session import ReferenceModel

FILE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class Example:
    """One line: the user's turns, the last being the query, and what stands in the prompt instead."""

    turns: tuple[str, ...]
    system: str | None
    tools: str | None


@dataclass(frozen=True)
class Agreement:
    """The budgeted member against the plain one."""

    examples: int
    tokens: int
    kl: float
    """Mean KL divergence of the next token, plain from budgeted, in nats, over the plain member's answers."""
    exact_match: float
    """Share of the examples whose greedy answers have the same tokens."""


def read_examples(path: Path) -> list[Example]:
    """Read a `.jsonl`. Raises `FamilyError` (unreadable, bad_evaluation)."""
    lines = read_regular(path, FILE_BYTES_MAX, error=FamilyError).splitlines()
    examples = [_example(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not examples:
        raise _bad(f"{path}: has no line; give it one example at least")
    return examples


def compare(plain: bytes, budgeted: bytes, member: Member, examples: list[Example]) -> Agreement:
    """Answer every example with both. Raises `SessionError` (context_full) for a prompt that is too long."""
    from builder.reference.session import ReferenceOpener  # Imports torch, which no other export needs.

    opener = ReferenceOpener()
    models = opener(plain, member.id), opener(budgeted, member.id)
    results = [_compare_one(*models, member, example) for example in examples]
    divergences = np.concatenate([divergence for divergence, _ in results])
    matches = sum(is_match for _, is_match in results)
    mean = float(divergences.mean()) if len(divergences) else 0.0
    return Agreement(len(examples), len(divergences), mean, matches / len(examples))


def _compare_one(
    plain: ReferenceModel, budgeted: ReferenceModel, member: Member, example: Example
) -> tuple[npt.NDArray[np.float64], bool]:
    """KL at each step of the plain member's answer, and whether both answer the same."""
    from builder.reference.generation import generate
    from builder.reference.prompts import clean_conversation, fit_prompt
    from builder.reference.sampling import log_softmax
    from builder.runtime.interface import Sampling

    room = member.max_new_tokens or 1
    prompt = fit_prompt(plain, _template(member, example), clean_conversation(example.turns), room)
    answers = [
        generate(model, prompt, room, Sampling(temperature=0.0), keep_logits=True)
        for model in (plain, budgeted)
    ]
    assert answers[0].logits is not None  # Kept, as was asked for.
    session = budgeted.session(min(budgeted.info.max_seq_len, len(prompt) + room))
    session.append(prompt)
    divergences = []
    for step, row in enumerate(answers[0].logits):
        wanted, found = log_softmax(row), log_softmax(session.logits())
        divergences.append(float((np.exp(wanted) * (wanted - found)).sum()))
        if step < len(answers[0].token_ids) and step + 1 < len(answers[0].logits):
            session.append([answers[0].token_ids[step]])
    return np.array(divergences), answers[0].token_ids == answers[1].token_ids


def _template(member: Member, example: Example) -> PromptTemplate:
    from builder.reference.prompts import PromptTemplate

    return PromptTemplate(
        system=member.system if example.system is None else example.system,
        tools=member.tools if example.tools is None else example.tools,
        context_turns=member.context_turns,
    )


def _example(path: Path, number: int, line: bytes) -> Example:
    where = f"{path}: line {number}"
    value: Any = load_json(line, where, error=FamilyError, code="bad_evaluation")
    if not isinstance(value, dict):
        raise _bad(f"{where}: must be a JSON object")
    turns = value.get("turns", [value["query"]] if "query" in value else None)
    if not (
        isinstance(turns, list) and turns and all(isinstance(turn, str) and turn.strip() for turn in turns)
    ):
        raise _bad(f'{where}: must have "turns", a list of texts with the query last, or "query", a text')
    system, tools = value.get("system"), value.get("tools")
    if not isinstance(system, str | None):
        raise _bad(f"{where}: system is {plain_name(json.dumps(system))}, must be a text")
    if not isinstance(tools, list | None):
        raise _bad(f"{where}: tools is {plain_name(json.dumps(tools))}, must be a list of tools")
    return Example(tuple(turns), system, None if tools is None else compact_json(tools) if tools else "")


def _bad(sentence: str) -> FamilyError:
    return FamilyError(sentence, code="bad_evaluation")
