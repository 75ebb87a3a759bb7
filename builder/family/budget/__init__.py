"""Exporting a different specialist, on purpose, whose exact patch is small (docs/budget.md). Opt-in."""
