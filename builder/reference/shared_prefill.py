"""One prefill for what members have in common.

Members differ from the base in few tensors. What comes before the first difference (embedding and engrams,
then the leading layers) gives identical bits for identical token prefixes, so it is computed by whoever
comes first and reused by the others. Blocks of a prompt are shared whole, which keeps every matrix product
the same size with and without sharing: the results are equal bit for bit.

Owns: how far two members agree, and the bounded store of block results.
Does not know: text, routes, who asks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from builder.reference.layers import AttentionPast, EngramPast
from builder.reference.model import EngramOutput, NeedleModel, Past

BLOCK_COUNT_MAX = 64
"""Prompt blocks that are kept; the oldest goes first. 64 blocks of 32 tokens are four prompts of 512."""


@dataclass
class _Entry:
    """What is known of one prompt block: all that ids alone decide, and lanes after some leading layers."""

    streams: Tensor
    engrams: tuple[EngramOutput, ...]
    recent_ids: Tensor
    engram_pasts: tuple[EngramPast, ...]
    after: dict[int, tuple[Tensor, tuple[AttentionPast, ...]]]
    """Layer count -> lanes after that many layers, and the memories of these layers."""


class SharedPrefill:
    """Shares prompt blocks between an anchor and the members that begin like it."""

    def __init__(self, anchor: NeedleModel) -> None:
        self._anchor = anchor
        self._depths: WeakKeyDictionary[NeedleModel, int | None] = WeakKeyDictionary()
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        self.register(anchor)

    def register(self, network: NeedleModel) -> int | None:
        """How many leading layers the network shares with the anchor; None if not even the embedding."""
        if network not in self._depths:
            self._depths[network] = _common_layers(self._anchor, network)
        return self._depths[network]

    def extend(self, network: NeedleModel, prefix: Sequence[int], past: Past) -> tuple[Tensor, Past]:
        """`NeedleModel.extend` for the ids of `prefix` that `past` does not hold yet (1, T), shared where
        possible.

        `prefix` is the whole prompt so far; earlier blocks must have come through here or have the same
        bounds.
        """
        depth = self.register(network)
        ids = torch.tensor([prefix[past.position :]])
        if depth is None:
            return network.extend(ids, past)
        entry = self._entry(network, tuple(prefix), ids, past)
        streams, memories = self._leading_layers(network, entry, past, depth)
        done = len(memories)
        streams, rest = network.run_layers(streams, entry.engrams, past, done, len(network.layers))
        blocks = (*memories, *rest)
        position = past.position + ids.shape[1]
        return streams, Past(position, entry.recent_ids, entry.engram_pasts, blocks, past.pinned)

    def _entry(self, network: NeedleModel, prefix: tuple[int, ...], ids: Tensor, past: Past) -> _Entry:
        key = (past.position, past.pinned, *prefix)
        if key not in self._entries:
            self._entries[key] = _Entry(*network.enter(ids, past), after={})
            if len(self._entries) > BLOCK_COUNT_MAX:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return self._entries[key]

    def _leading_layers(
        self, network: NeedleModel, entry: _Entry, past: Past, depth: int
    ) -> tuple[Tensor, tuple[AttentionPast, ...]]:
        """Lanes and memories after `depth` layers: reuse what others left, leave what is new for them."""
        done = max((count for count in entry.after if count <= depth), default=0)
        streams, memories = entry.after.get(done, (entry.streams, ()))
        for stop in sorted(
            {count for count in self._depths.values() if count is not None and count <= depth}
        ):
            if stop > done:
                streams, new = network.run_layers(streams, entry.engrams, past, done, stop)
                memories, done = (*memories, *new), stop
                entry.after[stop] = (streams, memories)
        return streams, memories


def _common_layers(a: NeedleModel, b: NeedleModel) -> int | None:
    if replace(a.header, tensor_count=0) != replace(b.header, tensor_count=0):
        return None
    if not torch.equal(a.embedding, b.embedding) or not _same_module(a.engrams, b.engrams):
        return None
    count = 0
    for one, other in zip(a.layers, b.layers, strict=True):
        if not _same_module(one, other):
            break
        count += 1
    return count


def _same_module(a: nn.Module, b: nn.Module) -> bool:
    """Same kinds of modules with bit-identical tensors."""
    if [type(module) for module in a.modules()] != [type(module) for module in b.modules()]:
        return False
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
