"""Exact patches between containers: make, apply, inspect. The codec itself is in the engine."""
