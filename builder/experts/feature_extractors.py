"""What the router heads look at: frozen functions of a token's hidden state.

Owns: the extractors that packages can name, and how to add one.
Does not know: heads, routes, experts.
Source: docs/experts.md, "Routing".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from builder.errors import UsageError

NORM_EPSILON = 1e-6


class RouterFeatureExtractor(nn.Module):
    """Base: tokens (T, D) in any dtype -> features (T, width) f32, frozen and without memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 1:
            raise UsageError(f"feature extractor: width: is {width}, must be at least 1")
        self.width = width

    def forward(self, tokens: Tensor) -> Tensor:
        """(T, D) -> (T, width) f32."""
        raise NotImplementedError


class IdentityRouterFeatureExtractor(RouterFeatureExtractor):
    """The hidden state itself; `width` is the hidden width D."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(T, D) -> (T, D) f32."""
        return tokens.float()


class UnitRmsRouterFeatureExtractor(RouterFeatureExtractor):
    """The hidden state divided by its root mean square, so that heads see a direction and not a length."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(T, D) -> (T, D) f32."""
        features = tokens.float()
        return features * torch.rsqrt(features.square().mean(-1, keepdim=True) + NORM_EPSILON)


_KINDS: dict[str, Callable[[int], RouterFeatureExtractor]] = {
    "identity": IdentityRouterFeatureExtractor,
    "unit_rms": UnitRmsRouterFeatureExtractor,
}


def register_feature_extractor(kind: str, make: Callable[[int], RouterFeatureExtractor]) -> None:
    """Let packages name `kind`; `make(width)` builds it. Raises UsageError for a name that is taken."""
    if kind in _KINDS:
        raise UsageError(f"feature extractor {kind!r}: is registered, must be a new name")
    _KINDS[kind] = make


def feature_extractor_kinds() -> tuple[str, ...]:
    """The names that packages can use."""
    return tuple(_KINDS)


def make_feature_extractor(kind: str, width: int) -> RouterFeatureExtractor:
    """A fresh extractor. Raises UsageError for an unknown kind."""
    if kind not in _KINDS:
        raise UsageError(f"feature extractor: is {kind!r}, must be one of {', '.join(_KINDS)}")
    return _KINDS[kind](width)
