"""Verify sparse top-1 execution, anchor fallback and telemetry on one routed layer.

Run: python -m examples.experts.verify_routed_top1
"""

from __future__ import annotations

import torch
from torch import nn

from builder.experts import (
    AffineRouterHead,
    IdentityRouterFeatureExtractor,
    RoutedMLP,
    RouteTelemetry,
    assert_tensors_equivalent,
)


class Scaled(nn.Module):
    """An MLP whose output tells who made it, and that counts the tokens it was given."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.token_count = 0

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(..., 2) -> (..., 2)."""
        self.token_count += hidden_states.shape[:-1].numel()
        return self.factor * hidden_states


def main() -> None:
    """Four tokens: code, ordinary, math (not available), code."""
    anchor, math, code = Scaled(1.0), Scaled(10.0), Scaled(100.0)
    routed_mlp = RoutedMLP(anchor)
    hidden_states = torch.tensor([[[0.0, 2.0], [-1.0, -1.0], [3.0, 0.0], [0.0, 1.0]]])  # (1, 4, 2)
    # Feature 0 is evidence for math, feature 1 for code.
    heads = [
        AffineRouterHead("math:0", torch.tensor([1.0, 0.0])),
        AffineRouterHead("code:0", torch.tensor([0.0, 1.0])),
    ]
    availability = torch.tensor([False, True])

    telemetry = RouteTelemetry(layer_index=1)
    routed_mlp.configure_anchored_top1(
        layer_index=1,
        router_feature_extractor=IdentityRouterFeatureExtractor(2),
        router_heads=heads,
        experts={"math:0": math, "code:0": code},
        route_telemetry=telemetry,
    )
    output = routed_mlp(hidden_states, expert_availability=availability)
    summary = telemetry.summarize()
    assert summary.anchor_count == 2
    assert summary.overflow_count == 1

    factors = torch.tensor([100.0, 1.0, 1.0, 100.0])[None, :, None]
    assert_tensors_equivalent(output, factors * hidden_states)
    assert (anchor.token_count, math.token_count, code.token_count) == (2, 0, 2)

    [record] = telemetry.records
    names = ("anchor", *record.expert_ids)
    print("token  selected  score  effective  overflow")
    for token in range(4):
        selected, effective = names[int(record.selected[token])], names[int(record.effective[token])]
        score, overflow = float(record.scores[token]), bool(record.overflow[token])
        print(f"{token:<5}  {selected:<8}  {score:<5.1f}  {effective:<9}  {'yes' if overflow else 'no'}")
    print(f"anchor {summary.anchor_count}, experts {summary.expert_count}, overflow {summary.overflow_count}")
    print("every token is in its place; math was never executed")


if __name__ == "__main__":
    main()
