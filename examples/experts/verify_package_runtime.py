"""Verify explicit package synchronization, removal and reinsertion on a small random Llama.

Run: python -m examples.experts.verify_package_runtime
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from builder.experts import (
    AffineRouterHead,
    ExpertBinding,
    ExpertPackage,
    Features,
    FullMlp,
    TransformersCausalLM,
    assert_tensors_equivalent,
)

WIDTH = 32
SEED = 7


def small_model() -> TransformersCausalLM:
    """Three layers of random weights, of which the first and the last are routed."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return TransformersCausalLM(LlamaForCausalLM(config).eval(), converted_layers=(0, -1))


def small_package(model: TransformersCausalLM) -> ExpertPackage:
    """One expert in each routed layer: the anchor with noise, and a random head."""
    payloads, bindings, heads = {}, [], {}
    for layer, mlp in model.routed_layers.items():
        noisy = {name: w + 0.1 * torch.randn_like(w) for name, w in mlp.anchor.named_parameters()}
        payloads[f"code-{layer}"] = FullMlp(noisy)
        bindings.append(ExpertBinding(layer, "code:0", f"code-{layer}"))
        heads[layer] = [AffineRouterHead("code:0", torch.randn(WIDTH))]
    return ExpertPackage(
        name="code-experts",
        features=Features(width=WIDTH),
        payloads=payloads,
        bindings=bindings,
        router_heads=heads,
    )


@torch.no_grad()
def main() -> None:
    """Install, synchronize, remove, synchronize, reinstall, synchronize."""
    model = small_model()
    input_ids = torch.arange(12)[None]
    dense_logits = model(input_ids=input_ids).logits
    with tempfile.TemporaryDirectory() as folder:
        package = small_package(model).save(Path(folder) / "code-experts")

        model.install(package)
        installed = model.synchronize_registry()
        routed_logits = model(input_ids=input_ids).logits

        model.unload(package.identity)
        model.synchronize_registry()
        assert_tensors_equivalent(model(input_ids=input_ids).logits, dense_logits)

        model.install(ExpertPackage.from_directory(package.package_directory))
        reinserted = model.synchronize_registry()
        assert reinserted.registry_sha256 == installed.registry_sha256

        assert installed.configured_layers == model.config.resolved_converted_layers
        assert not torch.equal(routed_logits, dense_logits)
        assert_tensors_equivalent(model(input_ids=input_ids).logits, routed_logits)
        model.unload(package.identity)
        assert not model.is_synchronized
        assert_tensors_equivalent(model(input_ids=input_ids).logits, routed_logits)

    print(f"package   {package.identity[:12]}")
    print(f"registry  {installed.registry_sha256[:12]}, layers {installed.configured_layers}")
    print("empty registry: the dense logits, bit for bit")
    print("reinserted: the same registry, the same routed logits")
    print("removed: nothing changes before synchronization, and the model says that it is stale")


if __name__ == "__main__":
    main()
