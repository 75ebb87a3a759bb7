from __future__ import annotations

import dataclasses
import gc
import re
from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor

from builder.errors import UsageError
from builder.experts import (
    AffineRouterHead,
    AnchorDeltas,
    ExpertPackage,
    IdentityRouterFeatureExtractor,
    LoraMerge,
    RouteRecord,
    RouteTelemetry,
    TransformersCausalLM,
    plot_route_shares,
    route_shares,
)
from builder.experts.policies import Route
from tests.experts.tiny_models import VOCAB, WIDTH, ids, package_for

FIELDS = {"selected", "scores", "effective", "overflow"}


def record(telemetry: RouteTelemetry, selected: list[Any], effective: list[Any]) -> None:
    before, after = torch.tensor(selected), torch.tensor(effective)
    telemetry.record(Route(before, before.float(), after, before != after), ("a", "b"))


def test_summaries_count_tokens_by_what_executed() -> None:
    telemetry = RouteTelemetry(layer_index=1)
    record(telemetry, [0, 1, 2, 2], [0, 1, 0, 2])
    record(telemetry, [1], [1])
    summary = telemetry.summarize()
    assert dataclasses.asdict(summary) == {
        "invocation_count": 2,
        "token_count": 5,
        "anchor_count": 2,
        "expert_count": 3,
        "overflow_count": 1,
    }


def test_a_token_with_two_slots_counts_once() -> None:
    telemetry = RouteTelemetry(layer_index=1)
    record(telemetry, [[1, 2], [2, 1], [1, 0], [0, 0]], [[1, 2], [0, 1], [0, 0], [0, 0]])
    summary = telemetry.summarize()
    assert (summary.token_count, summary.expert_count, summary.anchor_count) == (4, 2, 2)
    assert summary.overflow_count == 2


def test_only_the_last_invocations_are_kept() -> None:
    telemetry = RouteTelemetry(layer_index=0, invocations_max=3)
    for number in range(10):
        record(telemetry, [number % 3] * number, [number % 3] * number)
    assert [len(kept.selected) for kept in telemetry.records] == [7, 8, 9]
    assert telemetry.summarize().token_count == 24
    telemetry.clear()
    assert telemetry.records == ()
    assert telemetry.summarize().invocation_count == 0
    with pytest.raises(UsageError, match="must be at least 1"):
        RouteTelemetry(layer_index=0, invocations_max=0)


def test_without_records_every_count_is_zero() -> None:
    summary = RouteTelemetry(layer_index=0).summarize()
    assert set(dataclasses.astuple(summary)) == {0}


def reachable(root: object) -> list[object]:
    """Everything that can be reached from an object, but not through classes, modules and functions."""
    found: dict[int, object] = {}
    queue = deque([root])
    while queue:
        item = queue.popleft()
        if id(item) in found or isinstance(item, type) or type(item).__name__ in ("module", "function"):
            continue
        found[id(item)] = item
        queue.extend(gc.get_referents(item))
        if isinstance(item, Tensor):  # what a tensor holds beside its numbers is not known to gc
            queue.extend(part for part in (item.grad_fn, item._base, item.grad) if part is not None)
    return list(found.values())


@pytest.mark.parametrize("mode", [None, AnchorDeltas(), LoraMerge()])
def test_telemetry_holds_routes_and_nothing_of_what_was_routed(
    model: TransformersCausalLM, mode: Any
) -> None:
    kind = {None: "full_mlp"}.get(mode, "low_rank_delta" if isinstance(mode, AnchorDeltas) else "lora")
    model.install(package_for(model, "p", ("code:0", "code:1"), seed=1, kind=kind, mode=mode))
    model.synchronize_registry(record_routes=True)
    tokens = 11
    model(input_ids=ids(tokens))
    for layer, recorder in model.route_telemetry.items():
        items = reachable(recorder)
        tensors = [item for item in items if isinstance(item, Tensor)]
        slots = 1 if mode is None else 2
        assert len(tensors) == 4  # one record: selected, scores, effective, overflow
        for tensor in tensors:
            assert tensor.numel() == tokens * slots
            assert tensor.device.type == "cpu"
            assert not tensor.requires_grad
            assert tensor.grad_fn is None
            assert tensor._base is None
            assert tensor.untyped_storage().nbytes() == tensor.nbytes  # not a window into something larger
            if tensor.dtype == torch.int64:
                assert int(tensor.max()) <= 2  # candidates: a token id would be larger sooner or later
        texts = {item for item in items if isinstance(item, str)}
        names = {"layer_index", "expert_ids", "_records", *FIELDS}
        assert texts - names == {"code:0", "code:1"}
        numbers = {item for item in items if isinstance(item, int | float) and not isinstance(item, bool)}
        assert numbers <= {layer}
        assert not [item for item in items if isinstance(item, bytes | bytearray | memoryview)]
        assert [type(item) for item in items if dataclasses.is_dataclass(item)] == [RouteRecord]


def test_records_do_not_follow_what_happens_to_the_tensors_later() -> None:
    telemetry = RouteTelemetry(layer_index=0)
    tensors = [torch.ones(3).long(), torch.ones(3), torch.ones(3).long(), torch.zeros(3).bool()]
    telemetry.record(Route(*tensors), ("a",))
    for tensor in tensors:
        tensor.zero_()
    assert telemetry.records[0].selected.tolist() == [1, 1, 1]
    assert telemetry.records[0].scores.tolist() == [1.0, 1.0, 1.0]


def test_scores_are_detached_from_the_graph_of_the_pass(model: TransformersCausalLM) -> None:
    model.install(package_for(model, "p", ("x",), seed=1, kind="lora", mode=LoraMerge()))
    model.synchronize_registry(record_routes=True)
    hidden = torch.randn(3, WIDTH, requires_grad=True)
    assert model.routed_layers[0](hidden).requires_grad
    assert model.route_telemetry[0].records[0].scores.grad_fn is None


def test_a_token_alone_is_recorded_too(model: TransformersCausalLM, package: ExpertPackage) -> None:
    model.install(package)
    model.synchronize_registry(record_routes=True)
    model(input_ids=ids(1))
    assert [recorder.summarize().token_count for recorder in model.route_telemetry.values()] == [1, 1, 1]


def test_a_failed_pass_leaves_no_record(model: TransformersCausalLM) -> None:
    class Broken(torch.nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            raise RuntimeError("broken")

    telemetry = RouteTelemetry(layer_index=0)
    model.routed_layers[0].configure_anchored_top1(
        layer_index=0,
        router_feature_extractor=IdentityRouterFeatureExtractor(WIDTH),
        router_heads=[AffineRouterHead("x", torch.zeros(WIDTH), 1.0)],
        experts={"x": Broken()},
        route_telemetry=telemetry,
    )
    with pytest.raises(RuntimeError, match="broken"):
        model(input_ids=ids(4))
    assert telemetry.records == ()


def test_shares_add_up_and_two_experts_share_a_token() -> None:
    telemetry = RouteTelemetry(layer_index=1)
    record(telemetry, [[1, 2], [1, 0], [0, 0], [2, 1]], [[1, 2], [1, 0], [0, 0], [0, 1]])
    assert route_shares(telemetry) == {"anchor": 0.25, "a": 0.625, "b": 0.125}
    assert route_shares(RouteTelemetry(layer_index=1)) == {}


@pytest.mark.slow
def test_the_plot_names_every_layer_and_candidate(
    model: TransformersCausalLM, package: ExpertPackage, tmp_path: Any
) -> None:
    model.install(package)
    model.synchronize_registry(record_routes=True)
    with pytest.raises(UsageError, match="has no records"):
        plot_route_shares(model.route_telemetry, tmp_path / "empty.svg")
    model(input_ids=ids(30) % VOCAB)
    plot_route_shares(model.route_telemetry, tmp_path / "shares.svg")
    text = (tmp_path / "shares.svg").read_text()
    for label in ("layer 0", "layer 1", "layer 2", "anchor", "code:0", "code:1"):
        assert f"<!-- {label} -->" in text
    plot_route_shares(model.route_telemetry, tmp_path / "shares.png")
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "empty.svg").exists()


@pytest.mark.slow
def test_the_plot_adds_up_the_experts_that_no_colour_is_left_for(tmp_path: Any) -> None:
    telemetry = RouteTelemetry(layer_index=0)
    often = torch.tensor([route for route in range(13) for _ in range(1 + route)])
    names = tuple(f"e{number}" for number in range(1, 13))
    telemetry.record(Route(often, often.float(), often, often < 0), names)
    plot_route_shares({0: telemetry}, tmp_path / "shares.svg")
    labels = re.findall("<!-- (anchor|e[0-9]+|others) -->", (tmp_path / "shares.svg").read_text())
    assert labels == ["anchor", "e10", "e11", "e12", "e4", "e5", "e6", "e7", "e8", "e9", "others"]
