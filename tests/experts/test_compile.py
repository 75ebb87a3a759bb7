"""Routed layers and models under torch.compile: the same results, and no graph per route."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo

from builder.experts import (
    AnchorDeltas,
    HierarchicalPairs,
    LoraMerge,
    PairTop2,
    RoutedMLP,
    TransformersCausalLM,
)
from tests.experts.tiny_models import WIDTH, ids, llama, package_for

# Two warnings that torch's compiler gives about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
TOP1 = ("full_mlp", None, ())
SLOW_CASES = [
    ("full_mlp", PairTop2(), ()),
    ("full_mlp", HierarchicalPairs(), (("x", "y"),)),
    ("low_rank_delta", AnchorDeltas(), ()),
    ("lora", LoraMerge(), ()),
]
CASES = [TOP1, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def synchronised(kind: str, mode: Any, pairs: Any) -> TransformersCausalLM:
    model = TransformersCausalLM(llama())
    model.install(package_for(model, "p", ("x", "y"), seed=4, kind=kind, mode=mode, pairs=pairs))
    model.synchronize_registry(record_routes=True)
    return model


def hidden_of(tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("kind", "mode", "pairs"), CASES)
def test_a_compiled_layer_gives_what_the_plain_layer_gives(kind: str, mode: Any, pairs: Any) -> None:
    routed = synchronised(kind, mode, pairs).routed_layers[1]
    compiled = torch.compile(routed, backend="eager")
    for grad in (False, True):
        for tokens in (1, 30):
            with torch.set_grad_enabled(grad):
                torch.testing.assert_close(compiled(hidden_of(tokens)), routed(hidden_of(tokens)))
    limits = {"expert_availability": torch.tensor([True, False]), "expert_capacity": 3}
    torch.testing.assert_close(compiled(hidden_of(30), **limits), routed(hidden_of(30), **limits))


class Counting:
    """A backend that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graph_count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graph_count += 1
        return graph.forward


def test_new_routes_make_no_new_graphs() -> None:
    routed = synchronised(*TOP1).routed_layers[1]
    backend = Counting()
    compiled = torch.compile(routed, backend=backend)
    with torch.no_grad():
        for tokens in range(1, 12):
            compiled(hidden_of(tokens, seed=tokens))
        settled = backend.graph_count
        assert settled > 0
        for seed in range(40):
            compiled(hidden_of(12 + seed % 9, seed=seed))
    assert backend.graph_count == settled


def test_the_experts_and_the_routing_are_what_is_compiled() -> None:
    routed = synchronised(*TOP1).routed_layers[1]
    operations: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        operations.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    with torch.no_grad():
        torch.compile(routed, backend=backend)(hidden_of(30))
    text = " ".join(operations)
    assert "silu" in text  # an expert or the anchor
    assert "where" in text  # the policy
    assert "bincount" not in text  # the grouping
    assert "index_copy" not in text


@pytest.mark.slow
def test_a_compiled_layer_passes_gradients() -> None:
    routed = synchronised(*TOP1).routed_layers[1]
    compiled = torch.compile(routed, backend="aot_eager")
    gradients = []
    for layer in (compiled, routed):
        hidden = hidden_of(30).requires_grad_()
        layer(hidden).square().sum().backward()
        gradients.append(hidden.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.slow
def test_a_compiled_model_follows_the_registry() -> None:
    model = synchronised(*TOP1)
    dense = llama()(input_ids=ids()).logits
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(input_ids=ids()).logits, model(input_ids=ids()).logits)
        assert model.route_telemetry[0].summarize().invocation_count == 2
        model.unload(model.registry.snapshot().packages[0].identity)
        model.synchronize_registry()
        torch.testing.assert_close(compiled(input_ids=ids()).logits, dense)


def test_a_compiled_layer_without_experts_is_its_compiled_anchor() -> None:
    backend = Counting()
    routed = RoutedMLP(llama().model.layers[0].mlp)
    torch.testing.assert_close(
        torch.compile(routed, backend=backend)(hidden_of(4)), routed.anchor(hidden_of(4))
    )
    assert backend.graph_count == 1


@pytest.mark.slow
def test_the_default_compiler_gives_the_same_results_in_float32_and_bf16() -> None:
    for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        torch._dynamo.reset()
        model = TransformersCausalLM(llama(dtype=dtype))
        model.install(package_for(model, "p", ("x", "y"), seed=4))
        model.synchronize_registry()
        routed = model.routed_layers[1]
        with torch.no_grad():
            compiled = torch.compile(routed)
            for tokens in (1, 30):
                found, wanted = compiled(hidden_of(tokens).to(dtype)), routed(hidden_of(tokens).to(dtype))
                assert (found - wanted).float().norm() <= error * wanted.float().norm()
