"""From `family.toml` to finished `.cact` files: checkpoints and LoRA adapters in, containers out."""
