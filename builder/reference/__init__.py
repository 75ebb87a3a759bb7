"""The slow plain truth: model and generation in PyTorch, prompts, router, dispatcher."""
