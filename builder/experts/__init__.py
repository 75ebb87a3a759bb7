"""Token-level mixture of experts with an exact anchor: packages, registry, routing, dispatch."""
