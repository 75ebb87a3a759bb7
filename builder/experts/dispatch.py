"""Sparse execution: group tokens by effective route, call each needed module once, restore the order.

Owns: grouping and reconstruction.
Does not know: why a token has its route; what a module computes, except that it is token-wise.
Source: docs/experts.md, "Dispatch". Letters: T tokens, D hidden width, S slots, C candidates.

Every function flattens the token-leading dimensions of `hidden_states` (..., D) and calls a module at most
once, never for zero tokens (an empty input alone goes to the anchor, which knows its shape). A module gets
its tokens in as many dimensions as `hidden_states` has, (1, ..., n, D). The output keeps the leading ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from builder.errors import UsageError
from builder.experts.compilation import stays_in_python
from builder.experts.policies import ANCHOR

Candidate = Callable[[Tensor], Tensor]
"""A token-wise module (..., D) -> (..., D)."""
Group = tuple[int, Tensor]
"""A candidate and the ascending positions (n,) int64 of its tokens, n > 0."""


@stays_in_python
def token_groups(routes: Tensor, candidate_count: int) -> list[Group]:
    """A group for each candidate that occurs in `routes` (T,) int64, in candidate order.

    Raises UsageError where a route is not a candidate.
    """
    if len(routes) == 1:
        groups = [(int(routes.item()), routes.new_zeros(1))]
    else:
        counts = torch.bincount(routes, minlength=candidate_count).tolist()
        filled = [candidate for candidate, count in enumerate(counts) if count]
        order = routes.argsort(stable=True)
        positions = torch.split(order, [counts[candidate] for candidate in filled])
        groups = list(zip(filled, positions, strict=True))
    if groups and not 0 <= groups[-1][0] < candidate_count:
        allowed = f"from 0 to {candidate_count - 1}"
        raise UsageError(f"dispatch: route: is {groups[-1][0]}, must be {allowed}", code="route_unknown")
    return groups


@stays_in_python
def dispatch_top1(hidden_states: Tensor, routes: Tensor, candidates: Sequence[Candidate]) -> Tensor:
    """Each token through its one candidate. hidden_states: (..., D); routes: (T,) int64; -> (..., D).

    Where all tokens share a candidate it gets `hidden_states` as it is, so that a forced-anchor pass is the
    dense pass bit for bit.
    """
    groups = token_groups(routes, len(candidates))
    if len(groups) <= 1:
        return candidates[groups[0][0] if groups else ANCHOR](hidden_states)
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])  # (T, D)
    run = _run_recorded if torch.is_grad_enabled() else _run_in_place
    output = run(tokens, hidden_states.dim(), groups, candidates)  # (T, D)
    return output.reshape(*hidden_states.shape[:-1], output.shape[-1])


@stays_in_python
def dispatch_slots(
    hidden_states: Tensor, routes: Tensor, weights: Tensor, candidates: Sequence[Candidate]
) -> Tensor:
    """Each token through up to S experts, mixed in float32; through the anchor where it has none.

    hidden_states: (..., D); routes: (T, S) int64, 0 for an empty slot; weights: (T, S) f32; -> (..., D).
    A token with one expert of weight 1 gets that expert's output unchanged.
    """
    alone = (routes == ANCHOR).all(dim=1)  # (T,): the anchor answers
    if bool(alone.all()):
        return candidates[ANCHOR](hidden_states)
    used = routes > ANCHOR
    used[:, 0] |= alone
    weights = torch.cat([torch.where(alone, 1.0, weights[:, 0])[:, None], weights[:, 1:]], dim=1)
    mixed = mix_slots(hidden_states, routes, used, weights, candidates)  # (T, D)
    return mixed.to(hidden_states.dtype).reshape(*hidden_states.shape[:-1], mixed.shape[-1])


@stays_in_python
def mix_slots(
    hidden_states: Tensor, routes: Tensor, used: Tensor, weights: Tensor, candidates: Sequence[Candidate]
) -> Tensor:
    """The weighted sum over used slots in slot order, f32 (T, D); zero for a token that uses none.

    hidden_states: (..., D); routes: (T, S) int64; used: (T, S) bool, not all False; weights: (T, S) f32.
    """
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])  # (T, D)
    slots = routes.shape[1]
    entries = used.reshape(-1).nonzero()[:, 0]  # (N,) positions in the flattened (T, S)
    groups = token_groups(routes.reshape(-1)[entries], len(candidates))
    order = entries[torch.cat([positions for _, positions in groups])]  # (N,) by candidate
    owners = order.div(slots, rounding_mode="floor")  # (N,) the token of each entry
    gathered = tokens.index_select(0, owners)
    results = torch.cat(_run_groups(gathered, hidden_states.dim(), groups, candidates))  # (N, D)
    weighted = results.float() * weights.reshape(-1)[order][:, None]
    empty = weighted.new_zeros(len(tokens) * slots, results.shape[-1])
    return torch.index_copy(empty, 0, order, weighted).reshape(len(tokens), slots, -1).sum(dim=1)


@stays_in_python
def _run_recorded(tokens: Tensor, rank: int, groups: list[Group], candidates: Sequence[Candidate]) -> Tensor:
    """For autograd: one gather and one index_copy, so that backward touches (T, D) once and not per group."""
    order = torch.cat([positions for _, positions in groups])
    results = torch.cat(_run_groups(tokens.index_select(0, order), rank, groups, candidates))
    return torch.index_copy(torch.empty_like(results), 0, order, results)


@stays_in_python
def _run_in_place(tokens: Tensor, rank: int, groups: list[Group], candidates: Sequence[Candidate]) -> Tensor:
    """Without autograd: each group is gathered, run and put back while it is in the cache."""
    output = tokens
    for number, (candidate, positions) in enumerate(groups):
        result = _call(candidates[candidate], tokens.index_select(0, positions), rank)
        if number == 0:
            output = result.new_empty(len(tokens), result.shape[-1])
        output.index_copy_(0, positions, result)
    return output


@stays_in_python
def _run_groups(
    gathered: Tensor, rank: int, groups: list[Group], candidates: Sequence[Candidate]
) -> list[Tensor]:
    """Results (n, D) in group order; `gathered` holds the groups' tokens one after another."""
    parts = torch.split(gathered, [len(positions) for _, positions in groups])
    results = []
    for (candidate, _), part in zip(
        groups, parts, strict=True
    ):  # a comprehension would be a frame of its own
        results.append(_call(candidates[candidate], part, rank))
    return results


@stays_in_python
def _call(module: Candidate, tokens: Tensor, rank: int) -> Tensor:
    """Tokens (n, D) through a module that sees `rank` dimensions."""
    if rank == 2:
        return module(tokens)
    return module(tokens.view((1,) * (rank - 2) + tuple(tokens.shape))).flatten(0, -2)
