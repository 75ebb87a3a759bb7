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
CASES = [
    TOP1,
    ("full_mlp", PairTop2(), ()),
    ("full_mlp", HierarchicalPairs(), (("x", "y"),)),
    ("low_rank_delta", AnchorDeltas(), ()),
    ("lora", LoraMerge(), ()),
]


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


@pytest.mark.slow
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


class Watching:
    """A backend that keeps the operations of each graph and runs it as it is."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        self.graphs.append(" ".join(calls))
        return graph.forward


@pytest.mark.slow
def test_experts_and_routing_are_compiled_each_alone() -> None:
    backend = Watching()
    with torch.no_grad():
        torch.compile(synchronised(*TOP1).routed_layers[1], backend=backend)(hidden_of(30))
    routing = [graph for graph in backend.graphs if "where" in graph]
    modules = [graph for graph in backend.graphs if "silu" in graph]
    assert len(routing) == 1
    assert 2 <= len(modules) <= 3  # the anchor's class, the experts' class, perhaps for two numbers of tokens
    assert all(graph.count("silu") == 1 for graph in modules)
    assert len(backend.graphs) == len(routing) + len(modules)  # grouping and recording are not among them


@pytest.mark.slow
def test_new_routes_make_no_new_graphs() -> None:
    backend = Watching()
    compiled = torch.compile(synchronised(*TOP1).routed_layers[1], backend=backend)
    with torch.no_grad():
        for tokens in range(1, 12):
            compiled(hidden_of(tokens, seed=tokens))
        settled = len(backend.graphs)
        assert 0 < settled <= 8
        for seed in range(40):
            compiled(hidden_of(12 + seed % 9, seed=seed))
    assert len(backend.graphs) == settled


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


@pytest.mark.slow
def test_a_compiled_layer_without_experts_is_its_compiled_anchor() -> None:
    backend = Watching()
    routed = RoutedMLP(llama().model.layers[0].mlp)
    compiled = torch.compile(routed, backend=backend)
    torch.testing.assert_close(compiled(hidden_of(4)), routed.anchor(hidden_of(4)))
    assert len(backend.graphs) == 1


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
