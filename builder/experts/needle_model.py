"""This project's reference model as the base.

Owns: the façade's view of `NeedleModel`: its MLPs, `logits`, greedy generation with and without a cache.
Does not know: tokenizers, containers, packages.
Source: builder/reference/model.py. Letters: B batch, T tokens, N new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from builder.errors import SessionError, refusal
from builder.experts.configuration import RoutedConfig
from builder.experts.routed_model import RoutedCausalLM
from builder.reference.model import NeedleModel, Past


@dataclass(frozen=True, eq=False)
class CausalOutput:
    """What a pass returns."""

    logits: Tensor
    """(B, T, V) f32."""


class NeedleCausalLM(RoutedCausalLM):
    """A Needle model with routed MLPs: `model(input_ids=...)` and `model.generate(...)`."""

    base_model: NeedleModel

    def __init__(self, base_model: NeedleModel, *, converted_layers: Iterable[int] | None = None) -> None:
        chosen = None if converted_layers is None else tuple(converted_layers)
        config = RoutedConfig(len(base_model.layers), base_model.header.d_model, chosen)
        super().__init__(base_model, dict(enumerate(base_model.blocks())), config)

    def run_base(self, input_ids: Tensor) -> CausalOutput:
        """(B, T) int64 -> logits of every position from the full history."""
        return CausalOutput(self.base_model(input_ids))

    def generate(
        self,
        input_ids: Tensor,
        *,
        max_new_tokens: int,
        eos_token_ids: Collection[int] = (),
        use_cache: bool = True,
        expert_availability: Mapping[str, bool] | None = None,
        expert_capacity: Mapping[str, int] | None = None,
    ) -> Tensor:
        """Greedy continuation (B, T) int64 -> (B, T + N), N <= max_new_tokens; all of it sees one runtime.

        It ends when every row has one of `eos_token_ids`; a row that ended earlier repeats its own. Capacity
        counts the tokens of one pass, so with a capacity it matters whether a cache is used.
        Raises SessionError (context_full) where the result could be longer than the model's context.
        """
        limit = self.base_model.header.max_seq_len
        if input_ids.shape[1] + max_new_tokens > limit:
            found = f"{input_ids.shape[1]} + {max_new_tokens} new"
            message = refusal("generate", "length", found=found, allowed=f"at most {limit} tokens")
            raise SessionError(message, code="context_full")
        ends = torch.tensor(sorted(eos_token_ids), dtype=torch.int64)
        with (
            torch.no_grad(),
            self.holding_runtime(expert_availability=expert_availability, expert_capacity=expert_capacity),
        ):
            return self._continue(input_ids, max_new_tokens, ends, use_cache)

    def _continue(self, ids: Tensor, max_new_tokens: int, ends: Tensor, use_cache: bool) -> Tensor:
        past = self.base_model.empty_past(ids.shape[0])
        fresh = ids  # what the past does not hold yet
        ended = torch.zeros(ids.shape[0], dtype=torch.bool)
        for _ in range(max_new_tokens):
            if use_cache:
                logits, past = self._last_logits(fresh, past)
            else:
                logits, _ = self._last_logits(ids, past)  # `past` stays empty
            chosen = torch.where(ended, ids[:, -1], logits.argmax(dim=-1))  # (B,)
            fresh = chosen[:, None]
            ids = torch.cat([ids, fresh], dim=1)
            ended = ended | torch.isin(chosen, ends)
            if bool(ended.all()):
                break
        return ids

    def _last_logits(self, ids: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Logits (B, V) after the last of `ids` (B, T), and the memory with them in it."""
        streams, past = self.base_model.extend(ids, past)
        return self.base_model.readout(streams[:, -1:])[:, 0], past
