"""Hosting `engine.wasm` in Python, with the interface that the browser uses."""
