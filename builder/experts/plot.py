"""Route shares per layer, from telemetry, as numbers and as a picture.

Owns: the shares and the bar chart.
Does not know: models, packages.
Source: docs/experts.md, "Telemetry".
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch

from builder.errors import MissingExtraError, UsageError
from builder.experts.policies import ANCHOR, by_slot
from builder.experts.telemetry import RouteTelemetry

ANCHOR_LABEL = "anchor"
OTHERS_LABEL = "others"
EXPERTS_MAX = 9  # colours that can be told apart, with one left for the others
LAYER_INCHES = 0.45
LABEL_INCHES = 0.22


def route_shares(telemetry: RouteTelemetry) -> dict[str, float]:
    """Share of executions by `anchor` and expert id over the kept records; they sum to 1.

    A token that two experts answer counts half for each. Empty without records.
    """
    counts: defaultdict[str, float] = defaultdict(float)
    for record in telemetry.records:
        slots = by_slot(record.effective)  # (T, S)
        executed = slots != ANCHOR
        shares = executed / executed.sum(dim=1, keepdim=True).clamp_min(1)  # (T, S)
        by_candidate = torch.bincount(slots[executed], shares[executed], minlength=len(record.expert_ids) + 1)
        by_candidate[ANCHOR] = torch.count_nonzero(~executed.any(dim=1))
        for label, count in zip((ANCHOR_LABEL, *record.expert_ids), by_candidate.tolist(), strict=True):
            counts[label] += count
    total = sum(counts.values())
    return {label: count / total for label, count in counts.items() if count}


def plot_route_shares(telemetry: Mapping[int, RouteTelemetry], path: str | os.PathLike[str]) -> None:
    """Write a picture (format by suffix: .png, .svg, .pdf) with one bar per layer, anchor first.

    Raises UsageError where nothing was recorded, MissingExtraError without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtraError("the plot of route shares", "experts") from None
    shares = _with_others({layer: route_shares(each) for layer, each in sorted(telemetry.items())})
    labels = _labels(shares.values())
    if not labels:
        raise UsageError("plot: telemetry: has no records, must have at least one; run the model first")
    figure = Figure(figsize=(7.0, 1.2 + LAYER_INCHES * len(shares) + LABEL_INCHES * len(labels) / 3))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = [f"layer {layer}" for layer in shares]
    left = [0.0] * len(rows)
    for label in labels:
        widths = [layer_shares.get(label, 0.0) for layer_shares in shares.values()]
        colour = "0.75" if label == ANCHOR_LABEL else None  # grey for the anchor, colours for experts
        axes.barh(rows, widths, left=left, label=label, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of tokens")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)
    figure.savefig(path, bbox_inches="tight")


def _with_others(shares: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    """The same with all but the experts of the largest shares added up."""
    totals: defaultdict[str, float] = defaultdict(float)
    for layer_shares in shares.values():
        for label, share in layer_shares.items():
            totals[label] += share
    experts = sorted(totals.keys() - {ANCHOR_LABEL}, key=lambda label: (-totals[label], label))
    shown = {ANCHOR_LABEL, *experts[:EXPERTS_MAX]}
    folded: dict[int, dict[str, float]] = {}
    for layer, layer_shares in shares.items():
        row = folded.setdefault(layer, {})
        for label, share in layer_shares.items():
            name = label if label in shown else OTHERS_LABEL
            row[name] = row.get(name, 0.0) + share
    return folded


def _labels(shares: Iterable[Mapping[str, float]]) -> list[str]:
    """The anchor first where it executed, then experts by name, then the others."""
    found = {label for layer in shares for label in layer}
    return sorted(found, key=lambda label: (label != ANCHOR_LABEL, label == OTHERS_LABEL, label))
