"""What is remembered of past routes: numbers and member ids, never text.

Owns: the route record of docs/dispatch.md and a bounded log of them, in memory only.
Does not know: conversations, models, where a log is shown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Literal

ROUTE_COUNT_MAX = 256
Reason = Literal[
    "none",
    "router_unavailable",
    "member_unavailable",
    "over_budget",
    "context_full",
    "answer_truncated",
    "answer_malformed",
    "worker_lost",
]


@dataclass(frozen=True)
class RouteRecord:
    """One response's route. It has no room for text, tokens, logits or hidden states."""

    selected: int
    """Candidate that the router chose; 0 is the base."""
    effective: int
    """Candidate that answered."""
    scores: tuple[float | None, ...]
    """One per candidate, natural log odds against the base; None where the router gave none."""
    overflow: bool
    """Whether the base answered because of `reason`."""
    reason: Reason
    ids: tuple[str, ...]
    """The candidates' member ids."""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary with the record's keys in order."""
        return asdict(self)


class RouteLog:
    """The last routes, oldest first; older ones are forgotten."""

    def __init__(self, capacity: int = ROUTE_COUNT_MAX) -> None:
        self._records: deque[RouteRecord] = deque(maxlen=capacity)

    def add(self, record: RouteRecord) -> None:
        """Remember a route."""
        self._records.append(record)

    def records(self) -> list[RouteRecord]:
        """A copy of what is remembered."""
        return list(self._records)
