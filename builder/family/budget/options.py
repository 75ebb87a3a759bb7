"""The budget options of `family export` and what it prints of budgeted members.

Owns: their command-line form, from arguments to a `Budget`, and the report.
Does not know: how a budget is met.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from builder.errors import UsageError
from builder.family.budget.evaluate import read_examples
from builder.family.budget.export import Budget, Budgeted, Lossy
from builder.family.budget.size import parse_size


def add_budget_arguments(parser: argparse.ArgumentParser) -> None:
    """`--budget` or `--patch-friendly`, and the limits that go with either."""
    group = parser.add_argument_group("a different member with a small patch (docs/budget.md)")
    choice = group.add_mutually_exclusive_group()
    choice.add_argument(
        "--budget", type=_size, metavar="SIZE", help="bytes of a member's patch, such as 300KB"
    )
    choice.add_argument("--patch-friendly", action="store_true", help="a point that suits most members")
    group.add_argument("--eval", type=Path, metavar="DATA.jsonl", help="compare answers on this set")
    group.add_argument("--min-gain", type=float, default=Budget.min_gain, help="default %(default)s")
    group.add_argument("--max-gain", type=float, default=Budget.max_gain, help="default %(default)s")
    group.add_argument("--max-kl", type=float, metavar="NATS", help="to the plain member's answers")
    group.add_argument("--min-exact-match", type=float, metavar="SHARE", help="of the answers, 0 to 1")


def budget_of(arguments: argparse.Namespace) -> Budget | None:
    """The wanted budget, if there is one. Raises `UsageError`, `FamilyError` for the evaluation set."""
    limits = {"--max-kl": arguments.max_kl, "--min-exact-match": arguments.min_exact_match}
    is_wanted = arguments.budget is not None or arguments.patch_friendly
    if not is_wanted:
        given = [name for name, value in {**limits, "--eval": arguments.eval}.items() if value is not None]
        if given:
            raise UsageError(f"{given[0]}: needs --budget or --patch-friendly")
        return None
    for name, value in limits.items():
        if value is not None and arguments.eval is None:
            raise UsageError(f"{name}: needs an evaluation set; name one with --eval")
    if arguments.eval is not None and arguments.member is None:
        raise UsageError("--eval: is the set of one member; name it with --member")
    return Budget(
        arguments.budget,
        min_gain=arguments.min_gain,
        max_gain=arguments.max_gain,
        max_kl=arguments.max_kl,
        min_exact_match=arguments.min_exact_match,
        examples=() if arguments.eval is None else tuple(read_examples(arguments.eval)),
    )


def budget_lines(made: Budgeted) -> list[str]:
    """What was changed, for people."""
    size = f"{len(made.patch):,}"
    if made.lossy is None:
        return [
            f"{made.member.id}: the exact patch of the plain export has {size} bytes already; not changed"
        ]
    arrival, plain = made.arrival, made.plain_arrival
    lines = [
        f"{made.member.id}: {made.lossy.mode}, not the plain export",
        f"  patch           {size} bytes, plain {made.plain_patch_bytes:,}",
        f"  gain            {arrival.gain:.4f}, plain {plain.gain:.4f}; {arrival.lowest_gain:.4f} to "
        f"{arrival.highest_gain:.4f} by tensor",
        f"  relative error  {arrival.relative_error:.4f}, plain {plain.relative_error:.4f}",
        f"  ranks           {_ranks(made.ranks)}",
    ]
    agreement = made.agreement
    if agreement is not None:
        lines += [
            f"  KL to plain     {agreement.kl:.6f} nats over {agreement.tokens} tokens",
            f"  exact match     {round(agreement.exact_match * agreement.examples)} of {agreement.examples}",
        ]
    return lines


def lossy_fields(lossy: Lossy) -> dict[str, Any]:
    """The record as it stands in JSON (docs/formats/manifest.md)."""
    fields: dict[str, Any] = {
        "mode": lossy.mode,
        "gain": lossy.gain,
        "relative_error": lossy.relative_error,
    }
    return fields if lossy.budget_bytes is None else fields | {"budget_bytes": lossy.budget_bytes}


def budget_document(made: Budgeted) -> dict[str, Any]:
    """The same for programs."""
    document: dict[str, Any] = {
        "patch_bytes": len(made.patch),
        "plain_patch_bytes": made.plain_patch_bytes,
        "lossy": None if made.lossy is None else lossy_fields(made.lossy),
    }
    agreement = made.agreement
    if agreement is not None:
        document |= {"kl": round(agreement.kl, 8), "exact_match": agreement.exact_match}
        document |= {"examples": agreement.examples, "tokens": agreement.tokens}
    return document


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(f"{rank} in {ranks.count(rank)}" for rank in sorted(set(ranks), reverse=True))
