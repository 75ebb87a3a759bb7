"""How two programs that computed the same thing are compared.

Owns: the distance between logits, teacher forcing, and the tolerances with their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from builder.reference.sampling import log_softmax
from tests.parity.recording import Response, SessionLog

Logits = Callable[[Sequence[int]], NDArray[np.float32]]
"""Ids (T,) -> logits of every position, (T, out_vocab)."""

REFERENCE_TO_JAX = 2e-6
"""Relative rms. Two float32 programs that add in another order differ by about 3e-7 (docs/reference.md)."""
ENGINE_TO_REFERENCE = 1e-4
"""Relative rms: what the numerics `exact` promises (docs/reference.md)."""
SCORE_TO_JAX = 2e-4
"""Absolute, in nats: a score is the difference of two sums of up to a dozen log probabilities."""
SCORE_TO_ENGINE = 2e-2
"""Absolute, in nats: the same sums with logits that may be off by 1e-4 of about 10."""


def distance(found: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    """Root mean square of the difference over that of the truth."""
    return float(np.sqrt(np.square(found - truth).mean() / np.square(truth).mean()))


def forced_logits(logits: Logits, log: SessionLog) -> NDArray[np.float32]:
    """What another program would draw from at each step if it were given the same ids, (steps, out_vocab)."""
    sequence = [*log.prompt_ids, *log.drawn_ids[:-1]]
    return logits(sequence)[len(log.prompt_ids) - 1 :]


def greedy_ids(rows: NDArray[np.float32], log: SessionLog) -> list[int]:
    """What another program would draw from its logits, held to what the tools allowed."""
    masks = [True if mask is None else mask for mask in log.allowed]
    return [int(np.where(mask, row, -np.inf).argmax()) for row, mask in zip(rows, masks, strict=True)]


def compare_by_forcing(
    responses: Iterable[Response], logits_of: Callable[[str], Logits]
) -> tuple[list[str], list[float]]:
    """Where the model without a cache would draw other ids (names), and its distance in each drawn answer.

    `logits_of` gives a member's logits.
    """
    other_tokens, distances = [], []
    for response in responses:
        for log in response.sessions:
            if log.drawn_ids:
                rows = forced_logits(logits_of(log.member), log)
                distances.append(distance(np.stack(log.logits), rows))
                if greedy_ids(rows, log) != log.drawn_ids:
                    other_tokens.append(response.name)
    return other_tokens, distances


def forced_score(logits: Logits, log: SessionLog, ids: Sequence[int]) -> float:
    """The log probability that another program gives to `ids` after the prompt."""
    rows = logits([*log.prompt_ids, *ids[:-1]])[len(log.prompt_ids) - 1 :]
    return float(sum(log_softmax(row)[token_id] for row, token_id in zip(rows, ids, strict=True)))
